// SPDX-License-Identifier: Apache-2.0
#include "octavo/device/locked_pages.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <sys/mman.h>
#include <sys/resource.h>

#include "octavo/device/pinned.h"
#include "octavo/kernels/error.h"
#include "octavo/kernels/round_up.h"

namespace octavo {

namespace {

std::string memlock_limit() {
  rlimit limit{};
  getrlimit(RLIMIT_MEMLOCK, &limit);
  return limit.rlim_cur == RLIM_INFINITY ? "unlimited" : std::to_string(limit.rlim_cur) + " bytes";
}

/// Maps `bytes` at a multiple of `alignment_bytes`: maps more, and unmaps what lies before and after.
void* map_aligned(std::size_t bytes, std::size_t alignment_bytes) {
  const std::size_t slack = alignment_bytes - static_cast<std::size_t>(page_bytes());
  void* mapped = mmap(nullptr, bytes + slack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) {
    fail(ErrorCode::out_of_memory, "device.pinned", bytes + slack, " bytes of memory (", bytes, " aligned to ",
         alignment_bytes, ") cannot be allocated: ", std::strerror(errno));
  }
  const auto start = reinterpret_cast<std::uintptr_t>(mapped);
  const std::uintptr_t first = round_up(start, alignment_bytes);
  if (first > start) munmap(mapped, first - start);
  if (start + slack > first) munmap(reinterpret_cast<void*>(first + bytes), start + slack - first);
  return reinterpret_cast<void*>(first);
}

}  // namespace

LockedPages::LockedPages(std::size_t bytes, std::size_t alignment_bytes) {
  const auto page = static_cast<std::size_t>(page_bytes());
  // these pages hold nothing else: mlock and munlock act on whole pages, whatever lies on them
  bytes_ = round_up(std::max<std::size_t>(bytes, 1), page);
  data_ = map_aligned(bytes_, std::max(alignment_bytes, page));
  if (mlock(data_, bytes_) == 0) return;
  const int error = errno;
  munmap(data_, bytes_);
  fail(ErrorCode::out_of_memory, "device.pinned", "locking ", bytes_, " bytes in RAM beside the ", pinned_bytes(),
       " bytes of live pinned tensors failed (", std::strerror(error), "): RLIMIT_MEMLOCK is ", memlock_limit(),
       "; 'ulimit -l' shows it in KiB and raises it");
}

LockedPages::~LockedPages() { munmap(data_, bytes_); }  // this unlocks the pages, too

void LockedPages::unlock() { munlock(data_, bytes_); }

}  // namespace octavo
