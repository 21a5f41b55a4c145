// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/symm_mem/SymmetricMemory.hpp>

#include <chrono>
#include <cstdint>
#include <memory>
#include <vector>

#include "octavo/comm/shared/host_ranks.h"
#include "octavo/comm/shared/shared_word.h"
#include "octavo/export.h"

namespace octavo {

/// torch's symmetric memory for ranks of one host on the CPU: a buffer of each rank that all others read and write, and
/// words by which they signal one another. Everything begins as zeros. Thread-safe, but a channel is for one thread of
/// a rank.
class OCTAVO_API SharedSymmetricMemory final : public c10d::symmetric_memory::SymmetricMemory {
 public:
  /// Called on all ranks together, in the order of their posts, with the same number of bytes. `timeout`: of waits
  /// that name none.
  SharedSymmetricMemory(const std::shared_ptr<HostRanks>& ranks, std::uint64_t bytes,
                        std::chrono::milliseconds timeout);
  ~SharedSymmetricMemory() override;

  std::vector<void*> get_buffer_ptrs() override { return buffers_; }
  std::vector<void*> get_signal_pad_ptrs() override { return signals_; }
  void** get_buffer_ptrs_dev() override { return buffers_.data(); }
  void** get_signal_pad_ptrs_dev() override { return signals_.data(); }
  std::size_t get_buffer_size() override { return bytes_; }
  std::size_t get_offset() override { return 0; }
  bool has_multicast_support() override { return false; }
  void* get_multicast_ptr() override { return nullptr; }
  int get_rank() override { return ranks_->rank(); }
  int get_world_size() override { return ranks_->world_size(); }
  c10::Device get_device() override { return c10::kCPU; }
  bool world_within_direct_access() override { return true; }

  /// Waits until all ranks have called it; what they wrote before can then be read. A timeout of 0: the constructor's.
  /// Throws Error communication where a rank has ended, timeout where a rank did not come, and invalid_argument for a
  /// channel that does not exist.
  void barrier(int channel, std::size_t timeout_ms) override;
  /// Signals a rank once, after that rank has taken in the signal before.
  void put_signal(int dst_rank, int channel, std::size_t timeout_ms) override;
  void wait_signal(int src_rank, int channel, std::size_t timeout_ms) override;

 private:
  /// The time of a wait: `timeout_ms`, or the constructor's where that is 0.
  std::chrono::milliseconds limit(std::size_t timeout_ms) const;
  void change(int of, int by, int channel, std::size_t timeout_ms, std::uint32_t from, std::uint32_t to);

  const std::shared_ptr<HostRanks> ranks_;
  const std::uint64_t bytes_, signal_bytes_;
  const std::chrono::milliseconds timeout_;
  std::vector<SharedWord*> users_;  // by rank: a word in its block, which counts the ranks that use the block
  std::vector<void*> buffers_, signals_;
};

}  // namespace octavo
