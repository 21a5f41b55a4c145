// SPDX-License-Identifier: Apache-2.0
#include "octavo/comm/shared/host_ranks.h"

#include <c10/util/StringUtil.h>

#include <cstring>
#include <unistd.h>
#include <utility>

#include "octavo/comm/small_collectives.h"
#include "octavo/comm/time_left.h"
#include "octavo/comm/wire.h"
#include "octavo/kernels/error.h"
#include "octavo/kernels/round_up.h"

namespace octavo {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

namespace {

constexpr const char* kSharedMemoryWhere = "comm.shared_memory";
constexpr std::uint64_t kLine = 64;  // of the cache, in bytes

/// Whether a rank that has posted `count` transfers has posted `number`. Counts wrap around.
bool includes(std::uint32_t count, std::uint32_t number) { return static_cast<std::int32_t>(count - number) > 0; }

}  // namespace

/// What the others read of a rank. It is at the beginning of the rank's memory.
struct HostRanks::Head {
  alignas(kLine) SharedWord posted;  // the number of transfers; who waits for it is also woken when the rank leaves
  SharedWord has_left;
};

/// One transfer of a rank. A Parcel for each receiver follows it in memory.
struct HostRanks::Slot {
  SharedWord readers;  // the number of readers that have not released it
};

std::uint64_t HostRanks::slot_bytes(int world_size) {
  const std::uint64_t bytes = sizeof(Parcel) * (1 + static_cast<std::uint64_t>(world_size));
  return round_up(bytes, kLine);
}

std::uint64_t HostRanks::bytes_before_blocks(int world_size) {
  return MemoryFile::kHeader + sizeof(Head) + kSlots * slot_bytes(world_size);
}

HostRanks::Head& HostRanks::head(int rank) const {
  return *reinterpret_cast<Head*>(files_[static_cast<std::size_t>(rank)]->data() + MemoryFile::kHeader);
}

HostRanks::Slot& HostRanks::slot(int rank, std::uint32_t number) const {
  auto* const first = reinterpret_cast<std::uint8_t*>(&head(rank) + 1);
  return *reinterpret_cast<Slot*>(first + number % kSlots * slot_bytes(world_size()));
}

Parcel& HostRanks::parcel(int owner, std::uint32_t number, int receiver) const {
  auto* const places = reinterpret_cast<Parcel*>(&slot(owner, number));
  return places[1 + receiver];
}

HostRanks::Connection HostRanks::connect(Wire& wire, milliseconds timeout) {
  std::shared_ptr<MemoryFile> own;
  std::string why_not;
  try {
    own = MemoryFile::create();
    own->grow(bytes_before_blocks(wire.world_size()));
  } catch (const Error& error) {
    why_not = error.what();
    own = nullptr;
  }
  std::vector<std::shared_ptr<MemoryFile>> files;
  const auto names = all_gather_value(wire, own ? own->name() : MemoryFile::Name{});
  for (std::size_t rank = 0; own && rank < names.size(); ++rank) {
    files.push_back(rank == static_cast<std::size_t>(wire.rank()) ? own : MemoryFile::open(names[rank]));
    if (files.back()) continue;
    why_not = c10::str("rank ", wire.rank(), " cannot read the memory of rank ", rank,
                       ", which is on another host, in another container or of another user");
    own = nullptr;
  }
  const auto can_read = all_gather_value(wire, std::uint8_t{own ? std::uint8_t{1} : std::uint8_t{0}});
  for (std::size_t rank = 0; rank < can_read.size(); ++rank) {
    if (can_read[rank] == 0 && why_not.empty()) {
      why_not = c10::str("rank ", rank, " cannot read the memory of all others, or they cannot read its own");
    }
  }
  if (!why_not.empty()) return {nullptr, why_not};
  return {std::make_shared<HostRanks>(wire.rank(), std::move(files), timeout), ""};
}

HostRanks::HostRanks(int rank, std::vector<std::shared_ptr<MemoryFile>> files, milliseconds timeout)
    : rank_(rank),
      process_(getpid()),
      files_(std::move(files)),
      timeout_(timeout),
      blocks_(std::make_shared<SharedBlocks>(files_[static_cast<std::size_t>(rank)],
                                             bytes_before_blocks(static_cast<int>(files_.size())))) {
  for (const auto& file : files_) processes_.emplace_back(file->name().process);
}

HostRanks::~HostRanks() {
  if (!is_of_this_process()) return;
  head(rank_).has_left.store(1, std::memory_order_release);
  wake_all(head(rank_).posted);
}

bool HostRanks::is_of_this_process() const { return getpid() == process_; }

bool HostRanks::has_ended(int rank) const {
  return head(rank).has_left.load(std::memory_order_acquire) != 0 ||
         processes_[static_cast<std::size_t>(rank)].has_ended();
}

void HostRanks::require(Awaited outcome, int peer, const char* what, milliseconds timeout) const {
  if (outcome == Awaited::reached) return;
  if (outcome == Awaited::late) {
    fail(ErrorCode::timeout, kSharedMemoryWhere, "rank ", rank_, ": rank ", peer, " did not ", what, " within ",
         timeout.count(), " ms", kRebuild);
  }
  fail(ErrorCode::communication, kSharedMemoryWhere, "rank ", rank_, ": rank ", peer, " (process ",
       processes_[static_cast<std::size_t>(peer)].id(), ") has ended or given up its connection", kRebuild);
}

void HostRanks::await(const SharedWord& word, std::uint32_t value, int peer, const char* answer,
                      milliseconds timeout) const {
  const auto outcome = await_word(
      word, end_of(timeout), [&](std::uint32_t now) { return now == value; }, [&] { return has_ended(peer); });
  require(outcome, peer, answer, timeout);
}

// ---- what this rank sends

at::Tensor HostRanks::room(std::uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  release_read();
  return blocks_->allocate(bytes);
}

void HostRanks::retain_until_unused(const at::Tensor& room, const SharedWord& users) {
  const std::lock_guard lock(mutex_);
  retained_.push_back({room, &users});
}

/// Releases what is not needed any more.
void HostRanks::release_read() {
  retained_.remove_if([](const Retained& one) { return one.users->load(std::memory_order_acquire) == 0; });
  unread_.remove_if([&](const Unread& one) {
    const bool has_come = includes(head(one.sender).posted.load(std::memory_order_acquire), one.number);
    if (has_come) release(one.sender, one.number);
    return has_come;
  });
}

/// Waits until the transfer that had the next slot, kSlots transfers ago, is over.
void HostRanks::await_free_slot() const {
  const SharedWord& readers = slot(rank_, posted_).readers;
  if (readers.load(std::memory_order_acquire) == 0) return;
  int ended = 0;
  const auto has_any_ended = [&] {
    for (const int peer : others()) {
      if (!has_ended(peer)) continue;
      ended = peer;
      return true;
    }
    return false;
  };
  const auto outcome =
      await_word(readers, end_of(timeout_), [](std::uint32_t count) { return count == 0; }, has_any_ended);
  if (outcome == Awaited::late) {
    fail(ErrorCode::timeout, kSharedMemoryWhere, "rank ", rank_, ": ", kSlots,
         " transfers are under way, and a peer did not ", "read the first of them within ", timeout_.count(), " ms",
         kRebuild);
  }
  require(outcome, ended, "read", timeout_);
}

std::unique_ptr<Posting> HostRanks::post(const at::Tensor& sent, std::span<const Parcel> parcels,
                                         std::vector<std::uint64_t> expected) {
  {
    const std::lock_guard lock(mutex_);
    release_read();  // peers may wait for that, as this rank waits for them
  }
  await_free_slot();
  const std::lock_guard lock(mutex_);
  release_read();
  const std::uint64_t first = sent.numel() == 0 ? 0 : blocks_->offset_of(sent.const_data_ptr());
  for (int peer = 0; peer < world_size(); ++peer) {
    const Parcel& one = parcels[static_cast<std::size_t>(peer)];
    parcel(rank_, posted_, peer) = {first + one.offset, one.bytes};
  }
  SharedWord& readers = slot(rank_, posted_).readers;
  // made before the posting, whose destructor would lock
  std::list<Retained> retained = {{sent, &readers}};
  auto posting = std::make_unique<Posting>(shared_from_this(), posted_, std::move(expected));
  // From here on nothing throws: a slot with readers whose transfer was not posted would never be free again.
  readers.store(static_cast<std::uint32_t>(world_size() - 1), std::memory_order_relaxed);
  retained_.splice(retained_.end(), retained);
  head(rank_).posted.store(++posted_, std::memory_order_release);
  wake_all(head(rank_).posted);
  return posting;
}

// ---- what others send

/// Waits for what a rank has posted and returns where it lies.
std::uint8_t* HostRanks::await_posted(int sender, std::uint32_t number, std::uint64_t expected,
                                      steady_clock::time_point deadline, milliseconds timeout) const {
  const auto outcome = await_word(
      head(sender).posted, deadline, [&](std::uint32_t count) { return includes(count, number); },
      [&] { return has_ended(sender); });
  require(outcome, sender, "send", timeout);
  const Parcel posted = parcel(sender, number, rank_);
  const MemoryFile& memory = *files_[static_cast<std::size_t>(sender)];
  if (posted.bytes != expected) {
    fail(ErrorCode::communication, kSharedMemoryWhere, "rank ", rank_, " expected ", expected, " bytes of rank ",
         sender, ", which sends ", posted.bytes, ": all ranks must make the same calls in the same order", kRebuild);
  }
  if (posted.bytes > memory.name().capacity || posted.offset > memory.name().capacity - posted.bytes) {
    fail(ErrorCode::communication, kSharedMemoryWhere, "rank ", sender, " says that it has published ", posted.bytes,
         " bytes for rank ", rank_, " at byte ", posted.offset, ", which is not in its memory: that was overwritten",
         kRebuild);
  }
  return memory.data() + posted.offset;
}

void HostRanks::release(int sender, std::uint32_t number) const {
  SharedWord& readers = slot(sender, number).readers;
  if (readers.fetch_sub(1, std::memory_order_acq_rel) == 1) wake_all(readers);
}

void HostRanks::abandon(std::uint32_t number) {
  const std::lock_guard lock(mutex_);
  for (const int peer : others()) unread_.push_back({number, peer});
  release_read();
}

Posting::Posting(std::shared_ptr<HostRanks> ranks, std::uint32_t number, std::vector<std::uint64_t> expected)
    : ranks_(std::move(ranks)), number_(number), expected_(std::move(expected)), from_(expected_.size()) {}

Posting::~Posting() {
  if (!ranks_->is_of_this_process()) return;
  if (is_awaited_) {
    for (const int peer : ranks_->others()) ranks_->release(peer, number_);
  } else {
    ranks_->abandon(number_);
  }
}

int Posting::rank() const { return ranks_->rank(); }
int Posting::world_size() const { return ranks_->world_size(); }

void Posting::await(milliseconds timeout) {
  if (is_awaited_) return;
  const auto deadline = end_of(timeout);
  for (const int peer : ranks_->others()) {
    const auto index = static_cast<std::size_t>(peer);
    from_[index] = ranks_->await_posted(peer, number_, expected_[index], deadline, timeout);
  }
  is_awaited_ = true;
}

}  // namespace octavo
