// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <vector>

#include "octavo/comm/compressor.h"
#include "octavo/export.h"

namespace octavo {

/// Stands in for the collectives of FSDP2 (torch.distributed.fsdp.fully_shard), one of which carries the gradients of a
/// parameter group: the reduce-scatter of its set_custom_reduce_scatter, or the all-reduce between replicas of its
/// set_all_reduce_hook.
///
/// FSDP2 uses the result as soon as the call returns, and so each call returns when the result is there, on the
/// device's current stream. A step of the Compressor is what comes after begin_pass(), until a group comes again. After
/// a failure every later call throws the same sentence. Thread-safe; all ranks make the calls in the same order.
class OCTAVO_API FsdpHook {
 public:
  struct Member {
    std::size_t parameter;  // index into the compressor's ParameterInfos
    std::uint64_t share;    // elements that each rank's shard of it has in FSDP2's flat tensors, padding included
  };

  /// `groups`: the parameters that need gradients of each parameter group, in the order in which FSDP2 lays them out.
  FsdpHook(std::shared_ptr<Compressor> compressor, std::vector<std::vector<Member>> groups);

  /// The model begins a forward pass.
  void begin_pass();
  /// The gradient of a parameter was computed: it is part of its group's next call. Without a gradient a parameter has
  /// no place in FSDP2's flat tensors.
  void mark(std::size_t parameter);

  /// `input`: [W, shard], the rank-th row of which becomes the averages; `output`: [shard]. Both flat, of one real
  /// floating dtype. `divisor`: of the sum over ranks.
  void reduce_scatter(std::size_t group, at::Tensor output, at::Tensor input, double divisor);
  /// `shard`: this rank's, flat, which becomes the average over its replicas.
  void all_reduce(std::size_t group, at::Tensor shard);

 private:
  void reduce(std::size_t group, const at::Tensor& bucket, std::uint64_t shard, double divisor);
  std::vector<Slot> slots_of(std::size_t group, std::uint64_t shard);

  std::mutex mutex_;
  std::shared_ptr<Compressor> compressor_;
  std::vector<std::vector<Member>> groups_;
  std::vector<bool> has_gradient_;  // by parameter
  std::vector<bool> in_step_;       // by group: its gradients were reduced in this step
  bool begins_step_ = true;
  std::exception_ptr failure_;
};

}  // namespace octavo
