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

/// Replaces the collectives of FSDP2 (torch.distributed.fsdp.fully_shard), one of which carries the gradients of a
/// parameter group: the reduce-scatter of its set_custom_reduce_scatter, or the all-reduce between replicas of its
/// set_all_reduce_hook.
///
/// FSDP2 uses the result as soon as the call returns, so each call returns when the result is there, on the device's
/// current stream. A step of the Compressor begins with the first group after begin_pass() or after the end of a step,
/// and where a group comes again that the step has had. After a failure every later call throws the same error. Throws
/// Error invalid_argument for a parameter or a group that is not there. Thread-safe. All ranks make the calls in the
/// same order.
class OCTAVO_API FsdpHook {
 public:
  struct Member {
    std::size_t parameter;     // index into the compressor's ParameterInfos
    std::uint64_t shard_size;  // elements of each rank's shard of it in FSDP2's flat tensors, padding included
  };

  /// `groups`: for each parameter group, the parameters that need gradients, in the order in which FSDP2 lays them out.
  FsdpHook(std::shared_ptr<Compressor> compressor, std::vector<std::vector<Member>> groups);

  /// Says that the model begins a forward pass.
  void begin_pass();
  /// Says that the gradient of a parameter was computed: it is then part of its group's next call. A parameter without
  /// a gradient has no place in FSDP2's flat tensors.
  void mark(std::size_t parameter);

  /// Averages the gradients of a group. `input`: [W, shard], whose rank-th row becomes the averages, too;
  /// `output`: [shard], the averages. Both are flat, of one real floating dtype. `divisor`: of the sum over ranks.
  void reduce_scatter(std::size_t group, at::Tensor output, at::Tensor input, double divisor);
  /// Averages `shard`, this rank's flat shard of a group, over its replicas, in place.
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
