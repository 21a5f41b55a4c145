// SPDX-License-Identifier: Apache-2.0
#include "octavo/device/sycl/hooks.h"

#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/Resize.h>

#include "octavo/device/sycl/cpu_allocator.h"
#include "octavo/device/sycl/generator.h"
#include "octavo/device/sycl/memory_pool.h"
#include "octavo/device/sycl/pinned.h"
#include "octavo/device/sycl/streams.h"
#include "octavo/kernels/error.h"

namespace octavo::sycl_device {

namespace {

class Hooks final : public at::PrivateUse1HooksInterface {
 public:
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return sycl_device::device_count() > 0; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return is_initialized() && !is_forked(); }
  void init() const override { runtime(); }

  c10::DeviceIndex deviceCount() const override { return device_count(); }
  c10::DeviceIndex getCurrentDevice() const override { return current_device(); }
  void setCurrentDevice(c10::DeviceIndex device) const override {
    require_device(device);
    set_current_device(device);
  }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex device) const override {
    const c10::DeviceIndex before = current_device();
    setCurrentDevice(device);
    return before;
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex device) const override {
    return device < 0 ? current_device() : exchangeDevice(device);
  }

  const at::Generator& getDefaultGenerator(c10::DeviceIndex device) const override { return default_generator(device); }
  at::Generator getNewGenerator(c10::DeviceIndex device) const override {
    if (device < 0) device = current_device();
    require_device(device);
    return make_generator(device);
  }

  bool isPinnedPtr(const void* data) const override { return is_pinned(data); }
  c10::Allocator* getPinnedMemoryAllocator() const override { return &pinned_allocator(); }
  at::Device getDeviceFromPtr(void* data) const override {
    const auto device = MemoryPool::instance().device_of(data);
    if (!device) fail(ErrorCode::invalid_argument, "device.sycl", "expected memory of a sycl tensor, got other memory");
    return {kType, *device};
  }
  void resizePrivateUse1Bytes(const c10::Storage& storage, std::size_t bytes) const override {
    const c10::OptionalDeviceGuard guard(storage.device());
    settle(storage.device().index());
    const OnDeviceMemory scope(storage.device().index());
    at::native::resize_bytes_cpu(storage.unsafeGetStorageImpl(), bytes);  // both memories can be read by the host
  }
};

}  // namespace

void register_hooks() { at::RegisterPrivateUse1HooksInterface(new Hooks); }

}  // namespace octavo::sycl_device
