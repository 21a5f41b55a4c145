// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "octavo/comm/shared/host_ranks.h"
#include "octavo/export.h"

namespace octavo {

/// The collectives of ranks of one host through memory that they share. A call lays out what this rank sends, which is
/// a copy but for what is in room() already, and returns; who waits for its work reads from the others' memory. There
/// is no thread beside: works may be waited for in any order, and are completed by wait() alone. A sum is formed in the
/// order of the ranks, for all elements: ((x0 + x1) + x2) + ..., each step rounded to the tensor's dtype.
///
/// Dense tensors of the CPU, in row-major order, and sums; all else goes to the back end that `beside` is. Calls as of
/// HostRanks. Works throw Error communication or timeout, of the sentences of HostRanks.
class OCTAVO_API SharedBackend final : public c10d::Backend {
 public:
  using BackendPtr = c10::intrusive_ptr<c10d::Backend>;
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;

  SharedBackend(BackendPtr beside, std::shared_ptr<HostRanks> ranks);

  const std::string getBackendName() const override { return "octavo-shared"; }

  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<std::int64_t>& output_sizes,
                        std::vector<std::int64_t>& input_sizes, const c10d::AllToAllOptions& options) override;
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& options) override;
  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                               const c10d::ReduceScatterOptions& options) override;
  /// Each rank adds up all: meant for what is small.
  WorkPtr allreduce(std::vector<at::Tensor>& tensors, const c10d::AllreduceOptions& options) override;
  WorkPtr barrier(const c10d::BarrierOptions& options) override;

  /// uint8[bytes] that the others read where it lies.
  at::Tensor room(std::uint64_t bytes) { return ranks_->room(bytes); }
  /// As HostRanks::post(); what is not in room() is copied there.
  std::unique_ptr<Posting> post(const at::Tensor& sent, std::span<const Parcel> parcels,
                                std::vector<std::uint64_t> expected);
  const std::shared_ptr<HostRanks>& ranks() const { return ranks_; }

 private:
  std::chrono::milliseconds deadline_or_default(std::chrono::milliseconds timeout) const;
  at::Tensor copy_of(const at::Tensor& sent);
  std::unique_ptr<Posting> post_to_all(const at::Tensor& sent);

  const BackendPtr beside_;
  const std::shared_ptr<HostRanks> ranks_;
};

/// The same ranks, as they are reached best.
struct Reached {
  c10::intrusive_ptr<c10d::Backend> backend;  // a SharedBackend, or the back end that was given
  std::string why_not;                        // the memory is not shared; empty where it is
};
/// By shared memory where all ranks are on one host, which they try together. `wanted`: false: not even tried; all
/// ranks say the same. `deadline`: of what they say meanwhile, and of HostRanks.
OCTAVO_API Reached reach_by_shared_memory(c10::intrusive_ptr<c10d::Backend> backend, std::optional<bool> wanted,
                                          std::chrono::milliseconds deadline);

}  // namespace octavo
