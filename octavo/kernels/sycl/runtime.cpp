// SPDX-License-Identifier: Apache-2.0
#include <string>

#include "octavo/kernels/host_memory.h"
#include "octavo/kernels/sycl/devices.h"
#include "octavo/kernels/sycl/table.h"

namespace octavo::sycl_backend {

namespace {

constexpr const char* kWhere = "device.sycl";

// ---- devices

int device_count() { return static_cast<int>(devices().size()); }

DeviceFacts facts(int index) {
  const sycl::device& device = device_at(index).device;
  return with_sycl_errors(kWhere, [&] {
    namespace info = sycl::info::device;
    return DeviceFacts{
        .name = device.get_info<info::name>(),
        .vendor = device.get_info<info::vendor>(),
        .driver = device.get_info<info::driver_version>(),
        .platform = device.get_platform().get_info<sycl::info::platform::name>(),
        .is_cpu = device.is_cpu(),
        .has_fp64 = device.has(sycl::aspect::fp64),
        .has_fp16 = device.has(sycl::aspect::fp16),
        .reads_ordinary_memory = device.has(sycl::aspect::usm_system_allocations),
        .total_bytes = device.get_info<info::global_mem_size>(),
        .compute_units = device.get_info<info::max_compute_units>(),
        .largest_group = static_cast<std::uint32_t>(device.get_info<info::max_work_group_size>()),
    };
  });
}

std::uint64_t free_bytes(int index) {
  const sycl::device& device = device_at(index).device;
  if (!device.has(sycl::aspect::ext_intel_free_memory)) {
    return static_cast<std::uint64_t>(HostMemory().available_bytes());
  }
  return with_sycl_errors(kWhere, [&] { return device.get_info<sycl::ext::intel::info::device::free_memory>(); });
}

// ---- queues

Queue create_queue(int index, bool is_urgent) {
  namespace property = sycl::property::queue;
  const Device& at = device_at(index);
  return with_sycl_errors(kWhere, [&]() -> Queue {
    sycl::property_list properties = {property::in_order(), property::enable_profiling()};
    if (is_urgent) {
      properties = {property::in_order(), property::enable_profiling(),
                    sycl::ext::oneapi::property::queue::priority_high()};
    }
    return {new sycl::queue(at.context, at.device, rethrow, properties), index};
  });
}

bool is_idle(Queue queue) {
  return with_sycl_errors(kWhere, [&] { return alone([&] { return sycl_queue_of(queue).ext_oneapi_empty(); }); });
}

void wait(Queue queue) {
  with_sycl_errors(kWhere, [&] { sycl_queue_of(queue).wait_and_throw(); });
}

void copy(Queue queue, void* to, const void* from, std::uint64_t bytes) {
  with_sycl_errors(kWhere, [&] { alone([&] { sycl_queue_of(queue).memcpy(to, from, bytes); }); });
}

}  // namespace

constinit const DeviceRuntime runtime = {
    .device_count = device_count,
    .facts = facts,
    .free_bytes = free_bytes,
    .allocate = allocate_memory,
    .free = free_memory,
    .create_queue = create_queue,
    .host_queue = []() -> Queue { return {&host_queue(), kHost}; },
    .is_idle = is_idle,
    .wait = wait,
    .copy = copy,
    .create_event = create_event,
    .destroy_event = destroy_event,
    .record = record,
    .is_done = is_done,
    .wait_for = wait_for,
    .block = block,
    .elapsed_ms = elapsed_ms,
    .compile = compile_user_kernel,
    .launch = launch_user_kernel,
};

}  // namespace octavo::sycl_backend
