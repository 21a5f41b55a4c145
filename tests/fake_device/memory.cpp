// SPDX-License-Identifier: Apache-2.0
#include "tests/fake_device/memory.h"

#include <algorithm>
#include <cstdlib>
#include <new>
#include <sys/mman.h>
#include <unistd.h>

#include "octavo/kernels/error.h"
#include "tests/fake_device/setting.h"

namespace octavo::fake {

namespace {

constexpr const char* kWhere = "kernels.fake";

std::uint64_t page_bytes() { return static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE)); }

std::uint64_t round_up(std::uint64_t value, std::uint64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

}  // namespace

Allocation::Allocation(int device, MemoryKind kind, std::uint64_t bytes, std::uint64_t alignment, bool is_managed)
    : device_(device),
      kind_(kind),
      bytes_(bytes),
      mapped_bytes_(round_up(bytes, page_bytes()) + alignment + page_bytes()),
      alignment_(alignment) {
  inside_ = map(PROT_READ | PROT_WRITE);
  address_ = kind == MemoryKind::device ? map(PROT_NONE) : inside_;
  if (is_managed) pages_ = std::make_unique<Pages>(device, address_, bytes);
}

Allocation::~Allocation() {
  for (void* mapping : mappings_) munmap(mapping, mapped_bytes_);
}

std::byte* Allocation::map(int protection) {
  void* mapping = mmap(nullptr, mapped_bytes_, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapping == MAP_FAILED) {
    for (void* before : mappings_) munmap(before, mapped_bytes_);
    throw std::bad_alloc();
  }
  mappings_.push_back(mapping);
  const std::uint64_t first = round_up(reinterpret_cast<std::uintptr_t>(mapping), alignment_);
  auto* memory = reinterpret_cast<std::byte*>(first);
  mprotect(memory + round_up(bytes_, page_bytes()), page_bytes(), PROT_NONE);  // directly behind whole pages
  return memory;
}

std::byte* Allocation::inside(const void* address) const {
  return inside_ + (static_cast<const std::byte*>(address) - address_);
}

bool Allocation::holds(const void* address, std::uint64_t bytes) const {
  const auto* first = static_cast<const std::byte*>(address);
  return first >= address_ && first + bytes <= address_ + bytes_;
}

Memory& Memory::all() {
  static auto* const memory = new Memory;
  return *memory;
}

void* Memory::allocate(int device, MemoryKind kind, std::uint64_t bytes, std::uint64_t alignment) {
  const std::lock_guard lock(mutex_);
  const std::uint64_t used = kind == MemoryKind::host ? 0 : used_bytes_[device];
  return bytes > budget_bytes() - used ? nullptr : add(device, kind, bytes, alignment, /*is_managed=*/false);
}

void* Memory::allocate_managed(int device, std::uint64_t bytes) {
  const std::uint64_t whole_pages = round_up(bytes, page_bytes());
  const std::lock_guard lock(mutex_);
  return whole_pages < bytes ? nullptr
                             : add(device, MemoryKind::shared, whole_pages, page_bytes(), /*is_managed=*/true);
}

void* Memory::add(int device, MemoryKind kind, std::uint64_t bytes, std::uint64_t alignment, bool is_managed) {
  try {
    auto made = std::make_shared<Allocation>(device, kind, bytes, alignment, is_managed);
    if (made->is_counted()) used_bytes_[device] += bytes;
    return live_.emplace(made->address(), made).first->second->address();
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}

void Memory::free(int device, void* memory) {
  const std::lock_guard lock(mutex_);
  const auto found = live_.find(static_cast<const std::byte*>(memory));
  if (found == live_.end() || found->second->device() != device) {
    fail(ErrorCode::internal, kWhere, "memory is freed that is not a live allocation of device ", device);
  }
  if (found->second.use_count() > 1) {
    fail(ErrorCode::internal, kWhere, "memory of device ", device,
         " is freed while a command that uses it has not run");
  }
  if (found->second->is_counted()) used_bytes_[device] -= found->second->bytes();
  live_.erase(found);
}

std::uint64_t Memory::free_bytes(int device) const {
  const std::lock_guard lock(mutex_);
  const auto used = used_bytes_.find(device);
  return budget_bytes() - (used == used_bytes_.end() ? 0 : used->second);
}

std::shared_ptr<const Allocation> Memory::used_by(int device, const void* address, std::uint64_t bytes) const {
  const std::lock_guard lock(mutex_);
  const auto next = live_.upper_bound(static_cast<const std::byte*>(address));
  if (next == live_.begin()) return nullptr;
  const std::shared_ptr<Allocation>& found = std::prev(next)->second;
  if (!found->holds(address, 0)) return nullptr;
  if (!found->holds(address, bytes)) {
    fail(ErrorCode::invalid_argument, kWhere, "a command uses ", bytes, " bytes of an allocation of ", found->bytes(),
         " that ends before");
  }
  if (found->kind() != MemoryKind::host && found->device() != device) {
    fail(ErrorCode::invalid_argument, kWhere, "a command of device ", device, " uses memory of device ",
         found->device());
  }
  return found;
}

std::uint64_t budget_bytes() {
  static const std::uint64_t bytes = setting("OCTAVO_FAKE_MEMORY_BYTES", std::uint64_t{2} << 30);
  return bytes;
}

}  // namespace octavo::fake
