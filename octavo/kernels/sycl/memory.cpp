// SPDX-License-Identifier: Apache-2.0
#include "octavo/kernels/sycl/devices.h"
#include "octavo/kernels/sycl/table.h"

namespace octavo::sycl_backend {

namespace {

constexpr const char* kWhere = "device.sycl";

}  // namespace

void* allocate_memory(int device, MemoryKind kind, std::uint64_t bytes, std::uint64_t alignment) {
  const Device& at = device_at(device);
  return with_sycl_errors(kWhere, [&]() -> void* {
    switch (kind) {
      case MemoryKind::device: return sycl::aligned_alloc_device(alignment, bytes, at.device, at.context);
      case MemoryKind::shared: return sycl::aligned_alloc_shared(alignment, bytes, at.device, at.context);
      case MemoryKind::host: return sycl::aligned_alloc_host(alignment, bytes, at.context);
    }
    return nullptr;
  });
}

void free_memory(int device, void* memory) {
  with_sycl_errors(kWhere, [&] { sycl::free(memory, device_at(device).context); });
}

}  // namespace octavo::sycl_backend
