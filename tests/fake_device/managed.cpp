// SPDX-License-Identifier: Apache-2.0
// Simulates which managed memory is resident on a device: kernels find all memory, and the journal says which memory
// they would have had to wait for.
#include "tests/fake_device/managed.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <unistd.h>

#include "octavo/export.h"
#include "octavo/kernels/error.h"
#include "tests/fake_device/memory.h"
#include "tests/fake_device/queue.h"

namespace octavo::fake {

namespace {

constexpr const char* kManaged = "kernels.fake";
constexpr std::size_t kMostDevices = 8;

std::uint64_t managed_page_bytes() { return static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE)); }

}  // namespace

// ---- the journal

Journal& Journal::of(int device) {
  static auto* const all = new std::array<Journal, kMostDevices>;
  return all->at(static_cast<std::size_t>(device));
}

void Journal::add(Movement movement, const void* address, std::uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  records_.push_back({movement, address, bytes});
  figures_.faults += movement == Movement::fault;
}

void Journal::add_resident(std::int64_t bytes) {
  const std::lock_guard lock(mutex_);
  figures_.resident_bytes += static_cast<std::uint64_t>(bytes);
  figures_.peak_resident_bytes = std::max(figures_.peak_resident_bytes, figures_.resident_bytes);
}

ManagedFigures Journal::figures() const {
  const std::lock_guard lock(mutex_);
  return figures_;
}

std::vector<MovementRecord> Journal::records() const {
  const std::lock_guard lock(mutex_);
  return records_;
}

void Journal::reset() {
  const std::lock_guard lock(mutex_);
  records_.clear();
  figures_ = {figures_.resident_bytes, figures_.resident_bytes, 0};
}

// ---- pages

Pages::Pages(int device, const std::byte* start, std::uint64_t bytes)
    : journal_(Journal::of(device)),
      start_(start),
      resident_((bytes + managed_page_bytes() - 1) / managed_page_bytes(), false) {}

Pages::~Pages() { set_resident(0, resident_.size(), false); }

std::uint64_t Pages::page_of(const void* address) const {
  return static_cast<std::uint64_t>(static_cast<const std::byte*>(address) - start_) / managed_page_bytes();
}

void Pages::set_resident(std::uint64_t begin, std::uint64_t end, bool is_resident) {
  std::int64_t changed = 0;
  for (std::uint64_t page = begin; page < end; ++page) {
    changed += resident_[page] != is_resident;
    resident_[page] = is_resident;
  }
  const auto bytes = changed * static_cast<std::int64_t>(managed_page_bytes());
  journal_.add_resident(is_resident ? bytes : -bytes);
}

void Pages::move(Movement movement, const void* first, std::uint64_t bytes) {
  if (bytes == 0) return;
  const std::lock_guard lock(mutex_);
  const auto* const last = static_cast<const std::byte*>(first) + bytes - 1;
  journal_.add(movement, first, bytes);
  set_resident(page_of(first), page_of(last) + 1, movement == Movement::prefetch);
}

bool Pages::bring(const void* first) {
  const std::lock_guard lock(mutex_);
  const std::uint64_t page = page_of(first);
  if (page == resident_.size() || resident_[page]) return false;  // at the end there is nothing to use
  journal_.add(Movement::fault, first, 0);
  set_resident(page, resident_.size(), true);
  return true;
}

void Pages::begin_use(const void* first) {
  if (!bring(first)) journal_.add(Movement::use, first, 0);
}

void Pages::end_use(const void* first) { bring(first); }

// ---- the back end's table

namespace {

CommandQueue& managed_queue(Queue queue) {
  if (queue.handle == nullptr) fail(ErrorCode::internal, kManaged, "the queue has no handle: it is not a device's");
  return *static_cast<CommandQueue*>(queue.handle);
}

std::shared_ptr<const Allocation> managed_at(Queue queue, const void* memory, std::uint64_t bytes) {
  auto used = Memory::all().used_by(queue.device, memory, bytes);
  if (used != nullptr && used->pages() != nullptr) return used;
  fail(ErrorCode::invalid_argument, kManaged, "expected managed memory of device ", queue.device, ", got other memory");
}

void prefetch(Queue queue, void* memory, std::uint64_t bytes, bool to_device) {
  CommandQueue& commands = managed_queue(queue);
  const auto used = managed_at(queue, memory, bytes);
  const auto run = [pages = used->pages(), memory, bytes, to_device] {
    if (to_device)
      pages->prefetch(memory, bytes);
    else
      pages->evict(memory, bytes);
  };
  commands.push({.run = run, .uses = {used}});
}

void fill(Queue queue, void* memory, std::uint32_t pattern, unsigned width, std::uint64_t count) {
  CommandQueue& commands = managed_queue(queue);
  const auto used = managed_at(queue, memory, width * count);
  ManagedUses managed;
  managed.add(used->pages(), memory);
  const auto run = [=] { managed.around([&] { host_managed.fill({}, memory, pattern, width, count); }); };
  commands.push({.run = run, .uses = {used}});
}

}  // namespace

constinit const ManagedMemory managed = {
    .page_bytes = managed_page_bytes,
    .is_zeroed = false,
    .allocate = [](Queue queue, std::uint64_t bytes) { return Memory::all().allocate_managed(queue.device, bytes); },
    .allocate_in_file = nullptr,
    .free = [](Queue queue, void* memory, std::uint64_t) { Memory::all().free(queue.device, memory); },
    .prefetch = prefetch,
    .fill = fill,
};

}  // namespace octavo::fake

// ---- for the tests, which find these by name in the plug-in

extern "C" {

OCTAVO_API void octavo_fake_managed_figures(int device, octavo::fake::ManagedFigures* figures) {
  *figures = octavo::fake::Journal::of(device).figures();
}

/// Returns how many records there are, and copies the first `capacity` of them to `records`.
OCTAVO_API std::uint64_t octavo_fake_managed_records(int device, octavo::fake::MovementRecord* records,
                                                     std::uint64_t capacity) {
  const auto all = octavo::fake::Journal::of(device).records();
  std::copy_n(all.begin(), std::min<std::uint64_t>(capacity, all.size()), records);
  return all.size();
}

OCTAVO_API void octavo_fake_managed_reset(int device) { octavo::fake::Journal::of(device).reset(); }

}  // extern "C"
