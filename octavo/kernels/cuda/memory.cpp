// SPDX-License-Identifier: Apache-2.0
#include <map>
#include <mutex>
#include <utility>

#include "octavo/kernels/cuda/devices.h"
#include "octavo/kernels/cuda/table.h"
#include "octavo/kernels/round_up.h"

namespace octavo::cuda_backend {

namespace {

/// Takes what allocation(&memory, parameters...) gives; 0 where there is none left.
template <class Memory, class Allocation, class... Parameters>
CUdeviceptr taken(const Allocation& allocation, Parameters... parameters) {
  Memory memory = {};
  const int result = allocation.result(&memory, parameters...);
  if (result == kOutOfMemory) return 0;
  allocation.require(result);
  return (CUdeviceptr)memory;
}

/// Returns 0 where there is none left.
CUdeviceptr allocate(MemoryKind kind, std::uint64_t bytes) {
  constexpr unsigned kGlobal = 1;    // CU_MEM_ATTACH_GLOBAL: for all streams
  constexpr unsigned kPortable = 1;  // CU_MEMHOSTALLOC_PORTABLE: page-locked for all devices
  switch (kind) {
    case MemoryKind::device: return taken<CUdeviceptr>(driver().cuMemAlloc_v2, bytes);
    case MemoryKind::shared: return taken<CUdeviceptr>(driver().cuMemAllocManaged, bytes, kGlobal);
    case MemoryKind::host: return taken<void*>(driver().cuMemHostAlloc, bytes, kPortable);
  }
  return 0;
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
