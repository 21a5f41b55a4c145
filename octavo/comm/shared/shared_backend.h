// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "octavo/comm/shared/host_ranks.h"
#include "octavo/export.h"

namespace octavo {

/// The collectives of ranks of one host through memory that they share. A call publishes what this rank sends and
/// returns; what is not in room() already is copied for that. The caller that waits for the work reads from the others'
/// memory. There is no extra thread: works may be waited for in any order, and wait() completes them. A work for which
/// nobody has waited when many others were begun is completed by the next call, because the ranks would otherwise wait
/// for one another to read it. A sum is formed in rank order, for all elements: ((x0 + x1) + x2) + ..., each step
/// rounded to the tensor's dtype.
///
/// An input that lies in room() is read where it lies: the others may still read it after this rank has waited for the
/// work. It may be written again once they have waited, too, which this rank knows of a call that they begin after it.
///
/// It handles dense tensors of the CPU, in row-major order, and sums; everything else goes to the back end `fallback`.
/// Calls follow the rules of HostRanks. Works throw Error communication or timeout, with the messages of HostRanks.
class OCTAVO_API SharedBackend final : public c10d::Backend {
 public:
  using BackendPtr = c10::intrusive_ptr<c10d::Backend>;
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;

  SharedBackend(BackendPtr fallback, std::shared_ptr<HostRanks> ranks);

  const std::string getBackendName() const override { return "octavo-shared"; }

  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<std::int64_t>& output_sizes,
                        std::vector<std::int64_t>& input_sizes, const c10d::AllToAllOptions& options) override;
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& options) override;
  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                               const c10d::ReduceScatterOptions& options) override;
  /// Each rank adds up everything, so this is meant for small tensors.
  WorkPtr allreduce(std::vector<at::Tensor>& tensors, const c10d::AllreduceOptions& options) override;
  WorkPtr barrier(const c10d::BarrierOptions& options) override;

  /// Returns uint8[bytes] that the others read where it lies.
  at::Tensor room(std::uint64_t bytes) { return ranks_->room(bytes); }
  /// Posts as HostRanks::post() does; what is not in room() is copied there.
  std::unique_ptr<Posting> post(const at::Tensor& sent, std::span<const Parcel> parcels,
                                std::vector<std::uint64_t> expected);
  const std::shared_ptr<HostRanks>& ranks() const { return ranks_; }

 private:
  std::chrono::milliseconds timeout_or_default(std::chrono::milliseconds timeout) const;
  std::unique_ptr<Posting> post_to_all(const at::Tensor& room);
  std::unique_ptr<Posting> post_room(const at::Tensor& room, std::span<const Parcel> parcels,
                                     std::vector<std::uint64_t> expected);
  WorkPtr begun(std::unique_ptr<Posting> posting, std::chrono::milliseconds timeout,
                std::function<void(const Posting&)> finish);
  void complete_old_works();

  struct Begun {
    std::uint64_t number;  // of its posting
    c10::weak_intrusive_ptr<c10d::Work> work;
  };

  const BackendPtr fallback_;
  const std::shared_ptr<HostRanks> ranks_;
  std::uint64_t posted_ = 0;
  std::deque<Begun> begun_;  // some are completed or destroyed
};

/// The same ranks, reached in the best way.
struct Reached {
  c10::intrusive_ptr<c10d::Backend> backend;  // a SharedBackend, or the back end that was given
  std::string why_not;                        // why the memory is not shared; empty where it is
};
/// Uses shared memory where all ranks are on one host, which they find out together. `wanted`: if false, it is not even
/// tried; all ranks must say the same. `timeout`: of what they tell one another meanwhile, and of HostRanks. Throws
/// Error invalid_argument without a back end, and what Wire throws.
OCTAVO_API Reached reach_by_shared_memory(c10::intrusive_ptr<c10d::Backend> backend, std::optional<bool> wanted,
                                          std::chrono::milliseconds timeout);

}  // namespace octavo
