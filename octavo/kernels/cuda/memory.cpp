// SPDX-License-Identifier: Apache-2.0
#include "octavo/kernels/cuda/memory.h"

#include <map>
#include <mutex>
#include <utility>

#include "octavo/kernels/cuda/devices.h"
#include "octavo/kernels/round_up.h"

namespace octavo::cuda_backend {

namespace {

/// Calls the driver's function for a kind of memory, and returns its result.
int allocate_by_driver(MemoryKind kind, CUdeviceptr& memory, std::uint64_t bytes) {
  constexpr unsigned kGlobal = 1;    // CU_MEM_ATTACH_GLOBAL: for all streams
  constexpr unsigned kPortable = 1;  // CU_MEMHOSTALLOC_PORTABLE: page-locked for all devices
  switch (kind) {
    case MemoryKind::device: return driver().cuMemAlloc_v2.result(&memory, bytes);
    case MemoryKind::shared: return driver().cuMemAllocManaged.result(&memory, bytes, kGlobal);
    case MemoryKind::host: break;
  }
  void* host = nullptr;
  const int result = driver().cuMemHostAlloc.result(&host, bytes, kPortable);
  memory = reinterpret_cast<CUdeviceptr>(host);
  return result;
}

/// Returns 0 where there is none left.
CUdeviceptr allocate(MemoryKind kind, std::uint64_t bytes) {
  CUdeviceptr memory = 0;
  const int result = allocate_by_driver(kind, memory, bytes);
  if (result == kOutOfMemory) return 0;
  driver().cuMemAlloc_v2.require(result);
  return memory;
}

void free_by_driver(MemoryKind kind, CUdeviceptr memory) {
  if (kind == MemoryKind::host) {
    driver().cuMemFreeHost(reinterpret_cast<void*>(memory));
  } else {
    driver().cuMemFree_v2(memory);
  }
}

/// What the driver gave for the memory that is handed out. CUDA takes no alignment: where its memory does not begin at
/// a multiple of what is asked for, there is more of it, and it begins before. Exists as long as the process.
class Allocations {
 public:
  struct Base {
    CUdeviceptr memory;
    MemoryKind kind;
  };

  static Allocations& all() {
    static auto* const only = new Allocations;
    return *only;
  }
  void keep(void* memory, Base base) {
    const std::lock_guard lock(mutex_);
    live_[memory] = base;
  }
  Base take(void* memory) {
    const std::lock_guard lock(mutex_);
    const auto found = live_.extract(memory);
    if (!found)
      fail(ErrorCode::invalid_argument, "device.cuda", "expected memory of this device that is not freed yet");
    return found.mapped();
  }

 private:
  std::mutex mutex_;
  std::map<void*, Base> live_;
};

}  // namespace

void* allocate_memory(int device, MemoryKind kind, std::uint64_t bytes, std::uint64_t alignment) {
  const CurrentContext current(device);
  CUdeviceptr base = allocate(kind, bytes);
  if (base % alignment != 0) {
    free_by_driver(kind, base);
    base = bytes + alignment < bytes ? 0 : allocate(kind, bytes + alignment);
  }
  if (base == 0) return nullptr;
  void* const memory = reinterpret_cast<void*>(round_up(base, alignment));
  Allocations::all().keep(memory, {base, kind});
  return memory;
}

void free_memory(int device, void* memory) {
  if (memory == nullptr) return;
  const CurrentContext current(device);
  const auto [base, kind] = Allocations::all().take(memory);
  free_by_driver(kind, base);
}

}  // namespace octavo::cuda_backend
