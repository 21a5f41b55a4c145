// SPDX-License-Identifier: Apache-2.0
#include "octavo/kernels/cuda/devices.h"
#include "octavo/kernels/cuda/table.h"

namespace octavo::cuda_backend {

namespace {

constexpr const char* kWhere = "device.cuda";

// ---- devices

int device_count() { return static_cast<int>(devices().size()); }

std::string driver_version() {
  int version = 0;
  driver().cuDriverGetVersion(&version);
  return "CUDA " + std::to_string(version / 1000) + '.' + std::to_string(version % 1000 / 10);
}

DeviceFacts facts(int index) {
  const Device& device = device_at(index);
  return {
      .name = device.name,
      .vendor = "NVIDIA",
      .driver = driver_version(),
      .platform = "CUDA, compute capability " + capability(device.architecture),
      .is_cpu = false,
      .has_fp64 = true,
      .has_fp16 = true,
      .reads_ordinary_memory = device.reads_ordinary_memory,
      .total_bytes = device.total_bytes,
      .compute_units = device.compute_units,
      .largest_group = device.largest_group,
  };
}

std::uint64_t free_bytes(int index) {
  const CurrentContext current(index);
  std::size_t free = 0, total = 0;
  driver().cuMemGetInfo_v2(&free, &total);
  return free;
}

// ---- queues

Queue host_queue() {
  if (!device_at(0).reads_ordinary_memory) {
    fail(ErrorCode::unsupported, kWhere, device_at(0).name, " does not read ordinary memory of the host");
  }
  return {stream_of({}), kHost};
}

bool is_idle(Queue queue) {
  const CurrentContext current(device_of(queue));
  return driver().cuStreamQuery.is_ready(stream_of(queue));
}

void wait(Queue queue) {
  const CurrentContext current(device_of(queue));
  driver().cuStreamSynchronize(stream_of(queue));
}

void copy(Queue queue, void* to, const void* from, std::uint64_t bytes) {
  if (bytes == 0) return;
  const CurrentContext current(device_of(queue));
  driver().cuMemcpyAsync(reinterpret_cast<CUdeviceptr>(to), reinterpret_cast<CUdeviceptr>(from), bytes,
                         stream_of(queue));
}

}  // namespace

Queue create_queue(int index, bool is_urgent) {
  const CurrentContext current(index);
  constexpr unsigned kNonBlocking = 1;  // CU_STREAM_NON_BLOCKING: does not wait for the default stream
  int least = 0, greatest = 0;
  driver().cuCtxGetStreamPriorityRange(&least, &greatest);
  CUstream stream = nullptr;
  driver().cuStreamCreateWithPriority(&stream, kNonBlocking, is_urgent ? greatest : least);
  return {stream, index};
}

constinit const DeviceRuntime runtime = {
    .device_count = device_count,
    .facts = facts,
    .free_bytes = free_bytes,
    .allocate = allocate_memory,
    .free = free_memory,
    .create_queue = create_queue,
    .host_queue = host_queue,
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
    .compile = nullptr,  // torch.cuda._compile_kernel is for users' own kernels
    .launch = nullptr,
};

}  // namespace octavo::cuda_backend
