// SPDX-License-Identifier: Apache-2.0
#include "octavo/comm/shared/symmetric_memory.h"

#include <cstring>

#include "octavo/comm/time_left.h"
#include "octavo/kernels/error.h"
#include "octavo/kernels/round_up.h"

namespace octavo {

using std::chrono::milliseconds;

/// A rank's block holds the number of ranks that use it, its buffer and its signals. The transfer is over when all
/// ranks know where the block lies, so that the slots of others need not wait.
SharedSymmetricMemory::SharedSymmetricMemory(const std::shared_ptr<HostRanks>& ranks, std::uint64_t bytes,
                                             milliseconds timeout)
    : ranks_(ranks), bytes_(bytes), signal_bytes_(c10d::symmetric_memory::get_signal_pad_size()), timeout_(timeout) {
  constexpr std::uint64_t kAligned = 64;
  const std::uint64_t pad_offset = kAligned + round_up(bytes, kAligned);
  const std::uint64_t size = pad_offset + signal_bytes_;
  const at::Tensor own = ranks_->room(size);
  std::memset(own.mutable_data_ptr(), 0, size);
  const auto world = static_cast<std::size_t>(ranks_->world_size());
  auto& own_users = *static_cast<SharedWord*>(own.mutable_data_ptr());
  own_users.store(static_cast<std::uint32_t>(world), std::memory_order_relaxed);
  ranks_->retain_until_unused(own, own_users);
  const auto posting =
      ranks_->post(own, std::vector<Parcel>(world, {0, size}), std::vector<std::uint64_t>(world, size));
  posting->await(timeout_);
  for (int rank = 0; rank < ranks_->world_size(); ++rank) {
    const bool is_own = rank == ranks_->rank();
    std::uint8_t* const block = is_own ? own.mutable_data_ptr<std::uint8_t>() : posting->from(rank);
    users_.push_back(reinterpret_cast<SharedWord*>(block));
    buffers_.push_back(block + kAligned);
    signals_.push_back(block + pad_offset);
  }
}

SharedSymmetricMemory::~SharedSymmetricMemory() {
  if (!ranks_->is_of_this_process()) return;
  for (SharedWord* users : users_) users->fetch_sub(1, std::memory_order_acq_rel);
}

/// Changes the word of rank `of` that rank `by` sets to 1 and `of` sets to 0. The words lie as torch lays them out.
void SharedSymmetricMemory::change(int of, int by, int channel, std::size_t timeout_ms, std::uint32_t from,
                                   std::uint32_t to) {
  const int world = ranks_->world_size(), other = of == ranks_->rank() ? by : of;
  const auto channels = static_cast<int>(signal_bytes_ / sizeof(SharedWord)) / world;
  if (channel < 0 || channel >= channels || other < 0 || other >= world) {
    fail(ErrorCode::invalid_argument, "comm.symmetric_memory", "expected a channel below ", channels,
         " and a rank below ", world, ", got channel ", channel, " and rank ", other);
  }
  auto& word = static_cast<SharedWord*>(signals_[static_cast<std::size_t>(of)])[world * channel + by];
  ranks_->await(word, from, other, "answer a signal", limit(timeout_ms));
  word.store(to, std::memory_order_release);
  wake_all(word);
}

milliseconds SharedSymmetricMemory::limit(std::size_t timeout_ms) const {
  return timeout_ms == 0 ? timeout_ : milliseconds(timeout_ms);
}

void SharedSymmetricMemory::put_signal(int dst_rank, int channel, std::size_t timeout_ms) {
  change(dst_rank, ranks_->rank(), channel, timeout_ms, 0, 1);
}

void SharedSymmetricMemory::wait_signal(int src_rank, int channel, std::size_t timeout_ms) {
  change(ranks_->rank(), src_rank, channel, timeout_ms, 1, 0);
}

void SharedSymmetricMemory::barrier(int channel, std::size_t timeout_ms) {
  const TimeLeft left(limit(timeout_ms));
  const auto left_ms = [&] { return static_cast<std::size_t>(left().count()); };
  for (const int peer : ranks_->others()) put_signal(peer, channel, left_ms());
  for (const int peer : ranks_->others()) wait_signal(peer, channel, left_ms());
}

}  // namespace octavo
