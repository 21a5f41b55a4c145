// SPDX-License-Identifier: Apache-2.0
#include "octavo/kernels/managed.h"

#include "octavo/kernels/cuda/devices.h"
#include "octavo/kernels/cuda/table.h"

namespace octavo::cuda_backend {

namespace {

/// Returns the size of the host's pages, because the host shares the memory.
std::uint64_t page_bytes() { return host_managed.page_bytes(); }

void* allocate_managed(Queue queue, std::uint64_t bytes) {
  const std::uint64_t page = page_bytes(), size = whole_pages(bytes, page);
  return size < bytes ? nullptr : allocate_memory(device_of(queue), MemoryKind::shared, size, page);
}

void free_managed(Queue queue, void* memory, std::uint64_t) { free_memory(device_of(queue), memory); }

/// Runs `body` with the queue's stream; on the calling thread it waits for what `body` enqueued.
template <class Body>
void enqueue_managed(Queue queue, Body body) {
  const CurrentContext current(device_of(queue));
  body(stream_of(queue));
  if (queue.is_calling_thread()) driver().cuStreamSynchronize(stream_of(queue));
}

void prefetch(Queue queue, void* memory, std::uint64_t bytes, bool to_device) {
  constexpr CUdevice kCpu = -1;  // CU_DEVICE_CPU
  const Device& device = device_at(device_of(queue));
  if (bytes == 0 || !device.moves_pages) return;
  enqueue_managed(queue, [&](CUstream stream) {
    const CUdevice to = to_device ? device.handle : kCpu;
    driver().cuMemPrefetchAsync(reinterpret_cast<CUdeviceptr>(memory), bytes, to, stream);
  });
}

void fill(Queue queue, void* memory, std::uint32_t pattern, unsigned width, std::uint64_t count) {
  if (count == 0) return;
  enqueue_managed(queue, [&](CUstream stream) {
    const auto address = reinterpret_cast<CUdeviceptr>(memory);
    if (width == 1) {
      driver().cuMemsetD8Async(address, static_cast<unsigned char>(pattern), count, stream);
    } else {
      driver().cuMemsetD32Async(address, pattern, count, stream);
    }
  });
}

}  // namespace

constinit const ManagedMemory managed = {
    .page_bytes = page_bytes,
    .is_zeroed = false,
    .allocate = allocate_managed,
    .allocate_in_file = nullptr,
    .free = free_managed,
    .prefetch = prefetch,
    .fill = fill,
};

}  // namespace octavo::cuda_backend
