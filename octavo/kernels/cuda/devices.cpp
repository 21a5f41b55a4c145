// SPDX-License-Identifier: Apache-2.0
#include "octavo/kernels/cuda/devices.h"

#include <array>
#include <deque>
#include <mutex>

#include "octavo/kernels/cuda/table.h"
#include "octavo/kernels/lanes/device_list.h"

namespace octavo::cuda_backend {

namespace {

// CUdevice_attribute
constexpr int kMaxThreadsPerBlock = 1, kMultiprocessorCount = 16, kComputeCapabilityMajor = 75,
              kComputeCapabilityMinor = 76, kPageableMemoryAccess = 88, kConcurrentManagedAccess = 89;

Device describe(int ordinal) {
  const Driver& cuda = driver();
  CUdevice device = 0;
  cuda.cuDeviceGet(&device, ordinal);
  const auto attribute = [&](int which) {
    int value = 0;
    cuda.cuDeviceGetAttribute(&value, which, device);
    return value;
  };
  std::array<char, 256> name{};
  cuda.cuDeviceGetName(name.data(), name.size(), device);
  std::size_t total_bytes = 0;
  cuda.cuDeviceTotalMem_v2(&total_bytes, device);
  return {
      .handle = device,
      .name = name.data(),
      .architecture = 10 * attribute(kComputeCapabilityMajor) + attribute(kComputeCapabilityMinor),
      .reads_ordinary_memory = attribute(kPageableMemoryAccess) != 0,
      .moves_pages = attribute(kConcurrentManagedAccess) != 0,
      .total_bytes = total_bytes,
      .compute_units = static_cast<std::uint32_t>(attribute(kMultiprocessorCount)),
      .largest_group = static_cast<std::uint32_t>(attribute(kMaxThreadsPerBlock)),
  };
}

std::vector<Device> find_devices() {
  int count = 0;
  driver().cuDeviceGetCount(&count);
  std::vector<Device> found;
  for (int i = 0; i < count; ++i) found.push_back(describe(i));
  return found;
}

/// A device's primary context, made at its first use: it takes some hundred MiB of the device.
struct Primary {
  std::once_flag once;
  CUcontext context = nullptr;
};

CUcontext context_of(int index) {
  static auto* const all = new std::deque<Primary>(devices().size());
  const CUdevice device = device_at(index).handle;
  Primary& own = (*all)[static_cast<std::size_t>(index)];
  std::call_once(own.once, [&] { driver().cuDevicePrimaryCtxRetain(&own.context, device); });
  return own.context;
}

}  // namespace

const std::vector<Device>& devices() {
  static const auto* const all = new std::vector<Device>(find_devices());
  return *all;
}

const Device& device_at(int index) { return lanes::listed_device(devices(), index, "kernels.cuda"); }

CUstream stream_of(Queue queue) {
  if (!queue.is_calling_thread()) return static_cast<CUstream>(queue.handle);
  static const Queue own = create_queue(device_of(queue), /*is_urgent=*/false);
  return static_cast<CUstream>(own.handle);
}

CurrentContext::CurrentContext(int device) {
  lanes::require_not_forked(driver().process, "CUDA", "kernels.cuda");
  driver().cuCtxPushCurrent_v2(context_of(device));
  driver().cuThreadExchangeStreamCaptureMode.result(&capture_mode_);  // fails for no mode that there is
}

CurrentContext::~CurrentContext() {
  driver().cuThreadExchangeStreamCaptureMode.result(&capture_mode_);
  CUcontext popped = nullptr;
  driver().cuCtxPopCurrent_v2.result(&popped);  // fails only where the driver has ended
}

}  // namespace octavo::cuda_backend
