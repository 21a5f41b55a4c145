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

/// torch's symmetric memory, of ranks of one host on the CPU: a buffer of each rank that all others read and write, and
/// words by which they tell one another when. Begins as zeros. Thread-safe: a channel is for one thread of a rank.
class OCTAVO_API SharedSymmetricMemory final : public c10d::symmetric_memory::SymmetricMemory {
 public:
  /// On all ranks together, in the order of their posts, with as many bytes. `deadline`: of waits that name none.
  SharedSymmetricMemory(const std::shared_ptr<HostRanks>& ranks, std::uint64_t bytes,
                        std::chrono::milliseconds deadline);
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

  /// Until all ranks have called it: what they wrote before is then to be seen. A timeout of 0 is the deadline. Throws
  /// Error communication where a rank has gone, timeout where one did not come, invalid_argument for a channel of which
  /// there is none.
  void barrier(int channel, std::size_t timeout_ms) override;
  /// Tells a rank something once, after it has taken in what it was told before.
  void put_signal(int dst_rank, int channel, std::size_t timeout_ms) override;
  void wait_signal(int src_rank, int channel, std::size_t timeout_ms) override;

 private:
  void change(int of, int by, int channel, std::size_t timeout_ms, std::uint32_t from, std::uint32_t to);

  const std::shared_ptr<HostRanks> ranks_;
  const std::uint64_t bytes_, signal_bytes_;
  const std::chrono::milliseconds deadline_;
  std::vector<SharedWord*> users_;  // by rank: in its block, how many ranks use that
  std::vector<void*> buffers_, signals_;
};

}  // namespace octavo
