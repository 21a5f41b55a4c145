// SPDX-License-Identifier: Apache-2.0
#include "octavo/kernels/managed.h"

#include <unified-runtime/ur_api.h>

#include "octavo/kernels/sycl/devices.h"
#include "octavo/kernels/sycl/table.h"

namespace octavo::sycl_backend {

namespace {

constexpr const char* kWhere = "kernels.managed";

/// Returns the size of the host's pages, because the host shares the memory.
std::uint64_t page_bytes() { return host_managed.page_bytes(); }

/// Runs `body` with the queue. On the calling thread it waits for what `body` enqueued.
template <class Body>
void enqueue_managed(Queue queue, Body body) {
  with_sycl_errors(kWhere, [&] {
    sycl::queue& target = sycl_queue_of(queue);
    alone([&] { body(target); });
    if (queue.is_calling_thread()) target.wait_and_throw();
  });
}

void* allocate_managed(Queue queue, std::uint64_t bytes) {
  const std::uint64_t page = page_bytes(), size = whole_pages(bytes, page);
  if (size < bytes) return nullptr;
  return with_sycl_errors(kWhere, [&] { return sycl::aligned_alloc_shared(page, size, sycl_queue_of(queue)); });
}

void free_managed(Queue queue, void* memory, std::uint64_t) {
  with_sycl_errors(kWhere, [&] { sycl::free(memory, sycl_queue_of(queue)); });
}

/// Tells a driver that moves pages by itself where they belong.
void advise(sycl::queue& queue, void* memory, std::uint64_t bytes, bool to_device) {
  constexpr int kToDevice = UR_USM_ADVICE_FLAG_SET_PREFERRED_LOCATION;
  constexpr int kToHost = UR_USM_ADVICE_FLAG_SET_PREFERRED_LOCATION_HOST;
  queue.mem_advise(memory, bytes, to_device ? kToDevice : kToHost);
}

/// Calls what only moves pages earlier. A driver may refuse it: pages still move when they are asked for.
template <class Call>
void unless_refused(Call call) {
  try {
    call();
  } catch (const sycl::exception&) {
  }
}

/// On Level Zero nothing is prefetched to the host (its adapter says so, 2026): there only the advice has an effect.
void prefetch(Queue queue, void* memory, std::uint64_t bytes, bool to_device) {
  namespace oneapi = sycl::ext::oneapi::experimental;
  if (bytes == 0) return;
  const auto where = to_device ? oneapi::prefetch_type::device : oneapi::prefetch_type::host;
  enqueue_managed(queue, [&](sycl::queue& target) {
    unless_refused([&] { advise(target, memory, bytes, to_device); });
    unless_refused([&] { oneapi::prefetch(target, memory, bytes, where); });
  });
}

/// Sets bytes by memset: fill() with an unsigned char ends in a segmentation fault in some drivers (seed 002).
void fill(Queue queue, void* memory, std::uint32_t pattern, unsigned width, std::uint64_t count) {
  if (count == 0) return;
  enqueue_managed(queue, [&](sycl::queue& target) {
    if (width == 1) {
      target.memset(memory, static_cast<int>(pattern & 0xFF), count);
    } else {
      target.fill(memory, pattern, count);
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

}  // namespace octavo::sycl_backend
