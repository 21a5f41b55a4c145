// SPDX-License-Identifier: Apache-2.0
#include "octavo/kernels/managed.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <sys/mman.h>
#include <unistd.h>

#include "octavo/kernels/page_files.h"

namespace octavo {

namespace {

#if !defined(MADV_COLD)
#define MADV_COLD 20     // since Linux 5.4
#define MADV_PAGEOUT 21  // since Linux 5.4
#endif

std::uint64_t page_bytes() {
  static const auto bytes = static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
  return bytes;
}

std::uint64_t whole_pages(std::uint64_t bytes) { return octavo::whole_pages(bytes, page_bytes()); }

void* allocate(Queue, std::uint64_t bytes) {
  const std::uint64_t size = whole_pages(bytes);
  if (size < bytes) return nullptr;  // more than there are addresses
  void* memory = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return nullptr;
  madvise(memory, size, MADV_HUGEPAGE);
  return memory;
}

void* allocate_in_file(Queue, const std::string& directory, std::uint64_t bytes) {
  const std::uint64_t size = whole_pages(bytes);
  return size < bytes ? nullptr : PageFiles::all().map(directory, size);
}

void free_pages(Queue, void* memory, std::uint64_t bytes) {
  if (!PageFiles::all().unmap(memory)) munmap(memory, whole_pages(bytes));
}

// All of this is advice: where the kernel refuses it, nothing changes.

/// Reads pages in advance. From a file Linux reads no more at once than its read-ahead, 128 KiB by default.
void bring(std::uintptr_t first, std::uintptr_t end) {
  constexpr std::uintptr_t kReadAhead = 128 << 10;
  const bool is_file = PageFiles::all().holds(reinterpret_cast<const void*>(first));
  const std::uintptr_t step = is_file ? kReadAhead : end - first;
  for (; first < end; first += step) {
    madvise(reinterpret_cast<void*>(first), std::min(step, end - first), MADV_WILLNEED);
  }
}

/// Takes pages away. Linux takes no page that it would have to write first, so writing is begun before.
void take_away(std::uintptr_t first, std::uintptr_t end) {
  auto* const pages = reinterpret_cast<void*>(first);
  PageFiles::all().begin_write(pages, end - first);
  if (madvise(pages, end - first, MADV_PAGEOUT) != 0 && errno == EINVAL) madvise(pages, end - first, MADV_COLD);
}

void prefetch(Queue, void* memory, std::uint64_t bytes, bool to_device) {
  const auto first = reinterpret_cast<std::uintptr_t>(memory), end = first + bytes;
  const std::uintptr_t page = page_bytes();
  if (to_device) {
    bring(first / page * page, end);
  } else if (whole_pages(first) < end / page * page) {  // a part of a page stays: its neighbour may need it
    take_away(whole_pages(first), end / page * page);
  }
}

void fill(Queue, void* memory, std::uint32_t pattern, unsigned width, std::uint64_t count) {
  if (width == 1) {
    std::memset(memory, static_cast<int>(pattern & 0xFF), count);
  } else {
    std::fill_n(static_cast<std::uint32_t*>(memory), count, pattern);
  }
}

}  // namespace

constinit const ManagedMemory host_managed = {
    .page_bytes = page_bytes,
    .is_zeroed = true,
    .allocate = allocate,
    .allocate_in_file = allocate_in_file,
    .free = free_pages,
    .prefetch = prefetch,
    .fill = fill,
};

}  // namespace octavo
