// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "octavo/comm/other_ranks.h"
#include "octavo/comm/shared/memory_file.h"
#include "octavo/comm/shared/peer_process.h"
#include "octavo/comm/shared/shared_blocks.h"
#include "octavo/comm/shared/shared_word.h"
#include "octavo/comm/wire.h"
#include "octavo/export.h"

namespace octavo {

class HostRanks;

/// A transfer between the ranks of one host. Each rank publishes parcels in memory that all ranks read; nothing is
/// copied. What others have published stays until this object is destroyed.
class OCTAVO_API Posting {
 public:
  Posting(std::shared_ptr<HostRanks> ranks, std::uint32_t number, std::vector<std::uint64_t> expected);
  ~Posting();
  Posting(const Posting&) = delete;
  Posting& operator=(const Posting&) = delete;

  int rank() const;
  int world_size() const;
  /// Waits until all others have published their parcels. Throws Error communication where a rank has left, or has
  /// published another number of bytes than expected or bytes that are not in its memory, and Error timeout after the
  /// timeout.
  void await(std::chrono::milliseconds timeout);
  /// Returns the address of what another rank has for this one, once await() has returned.
  std::uint8_t* from(int sender) const { return from_[static_cast<std::size_t>(sender)]; }

 private:
  std::shared_ptr<HostRanks> ranks_;
  std::uint32_t number_;
  std::vector<std::uint64_t> expected_;  // bytes by rank
  std::vector<std::uint8_t*> from_;      // by rank
  bool is_awaited_ = false;
};

/// The ranks of a group, all on one host, and the memory that they share: each rank has its own, which the others read
/// and whose words they change. Nothing of it is left behind, however a process ends.
///
/// All ranks post in the same order. One thread at a time posts; others may wait. At most kSlots transfers may be under
/// way; after that post() waits for the others. A peer that has ended is noticed within a tenth of a second.
class OCTAVO_API HostRanks : public std::enable_shared_from_this<HostRanks> {
 public:
  static constexpr std::uint32_t kSlots = 4096;

  struct Connection {
    std::shared_ptr<HostRanks> ranks;  // null, on all ranks, where a rank cannot read another rank's memory
    std::string why_not;               // the reason in that case, as this rank sees it
  };
  /// Tries to connect the ranks, on all of them together. Throws what Wire throws.
  static Connection connect(Wire& wire, std::chrono::milliseconds timeout);

  HostRanks(int rank, std::vector<std::shared_ptr<MemoryFile>> files, std::chrono::milliseconds timeout);
  /// Tells the others that nothing more will come.
  ~HostRanks();
  HostRanks(const HostRanks&) = delete;
  HostRanks& operator=(const HostRanks&) = delete;

  int rank() const { return rank_; }
  int world_size() const { return static_cast<int>(files_.size()); }
  /// Returns all ranks but this one (other_ranks).
  auto others() const { return other_ranks(rank_, world_size()); }
  const std::vector<std::shared_ptr<MemoryFile>>& files() const { return files_; }
  /// Returns the timeout of waits for which none is given.
  std::chrono::milliseconds timeout() const { return timeout_; }

  /// Returns uint8[bytes] in this rank's own memory. Throws Error out_of_memory.
  at::Tensor room(std::uint64_t bytes);
  /// Retains memory of room() until `users`, a word in it, is 0. Ranks that use the memory after its transfer count
  /// themselves there.
  void retain_until_unused(const at::Tensor& room, const SharedWord& users);
  /// Whether this process made the object. A copy that a fork made shares memory that it must not change.
  bool is_of_this_process() const;
  /// Whether the others can read a tensor.
  bool contains(const at::Tensor& tensor) const { return blocks_->contains(tensor); }

  /// Publishes `parcels[r]` of `sent` for each rank r, and expects `expected[r]` bytes from it; the entries of this
  /// rank have no meaning. `sent` must be of room(). It stays until all have released it, and must not be written.
  std::unique_ptr<Posting> post(const at::Tensor& sent, std::span<const Parcel> parcels,
                                std::vector<std::uint64_t> expected);

  /// Waits until a word in shared memory, which `peer` changes, has a value. Throws Error communication or timeout: the
  /// message says that the peer did not `answer`.
  void await(const SharedWord& word, std::uint32_t value, int peer, const char* answer,
             std::chrono::milliseconds timeout) const;

 private:
  friend class Posting;
  struct Head;
  struct Slot;
  struct Retained {
    at::Tensor room;
    const SharedWord* users;  // counts the ranks that still use it; 0: the memory is free
  };
  struct Unread {
    std::uint32_t number;
    int sender;
  };

  static std::uint64_t slot_bytes(int world_size);
  static std::uint64_t bytes_before_blocks(int world_size);
  Head& head(int rank) const;
  Slot& slot(int rank, std::uint32_t number) const;
  Parcel& parcel(int owner, std::uint32_t number, int receiver) const;
  void abandon(std::uint32_t number);
  void release_read();
  void await_free_slot() const;
  void require(Awaited outcome, int peer, const char* what, std::chrono::milliseconds timeout) const;
  bool has_ended(int rank) const;
  std::uint8_t* await_posted(int sender, std::uint32_t number, std::uint64_t expected,
                             std::chrono::steady_clock::time_point deadline, std::chrono::milliseconds timeout) const;
  void release(int sender, std::uint32_t number) const;

  const int rank_;
  const std::int64_t process_;
  const std::vector<std::shared_ptr<MemoryFile>> files_;  // by rank
  std::vector<PeerProcess> processes_;                    // by rank
  const std::chrono::milliseconds timeout_;
  const std::shared_ptr<SharedBlocks> blocks_;
  std::mutex mutex_;
  std::uint32_t posted_ = 0;
  std::list<Retained> retained_;  // memory that others may read
  std::list<Unread> unread_;      // transfers that this rank will never read, and that may not have come yet
};

}  // namespace octavo
