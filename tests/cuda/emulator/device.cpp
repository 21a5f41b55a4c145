// SPDX-License-Identifier: Apache-2.0
#include "tests/cuda/emulator/device.h"

#include <cstring>
#include <new>

namespace octavo::cuda_emulator {

Memory& Memory::all() {
  static auto* const only = new Memory;
  return *only;
}

CUdeviceptr Memory::allocate(Allocation::Kind kind, CUdevice device, std::uint64_t bytes) {
  if (kind == Allocation::Kind::device && bytes > free_bytes(device)) return 0;
  void* const memory = ::operator new(bytes, std::align_val_t{kAlignment}, std::nothrow);
  if (memory == nullptr) return 0;
  std::memset(memory, 0xCD, bytes);  // what nobody wrote shows
  const std::lock_guard lock(mutex_);
  live_[reinterpret_cast<CUdeviceptr>(memory)] = {kind, device, bytes};
  return reinterpret_cast<CUdeviceptr>(memory);
}

bool Memory::free(CUdeviceptr memory, bool is_host) {
  const std::lock_guard lock(mutex_);
  const auto found = live_.find(memory);
  if (found == live_.end() || (found->second.kind == Allocation::Kind::host) != is_host) return false;
  live_.erase(found);
  ::operator delete(reinterpret_cast<void*>(memory), std::align_val_t{kAlignment});
  return true;
}

const Allocation* Memory::holding(CUdeviceptr memory, std::uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  auto after = live_.upper_bound(memory);
  if (after == live_.begin()) return nullptr;
  const auto& [begin, allocation] = *--after;
  const std::uint64_t offset = memory - begin;
  return offset <= allocation.bytes && bytes <= allocation.bytes - offset ? &allocation : nullptr;
}

std::uint64_t Memory::free_bytes(CUdevice device) {
  const std::lock_guard lock(mutex_);
  std::uint64_t used = 0;
  for (const auto& [memory, allocation] : live_) {
    if (allocation.kind == Allocation::Kind::device && allocation.device == device) used += allocation.bytes;
  }
  return device_bytes() - used;
}

const std::vector<CUctx_st*>& contexts() {
  static const auto* const all = [] {
    auto* const made = new std::vector<CUctx_st*>;
    const auto count = static_cast<CUdevice>(fake::setting("OCTAVO_EMULATED_CUDA_DEVICES", 2));
    for (CUdevice device = 0; device < count; ++device) made->push_back(new CUctx_st{.device = device});
    return made;
  }();
  return *all;
}

std::uint64_t device_bytes() { return fake::setting("OCTAVO_EMULATED_CUDA_BYTES", std::uint64_t{256} << 20); }

}  // namespace octavo::cuda_emulator
