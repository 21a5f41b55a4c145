// SPDX-License-Identifier: Apache-2.0
#include "octavo/device/sycl/guard.h"

#include <c10/core/impl/DeviceGuardImplInterface.h>

#include "octavo/device/sycl/allocator.h"
#include "octavo/device/sycl/streams.h"

namespace octavo::sycl_device {

namespace {

class Guard final : public c10::impl::DeviceGuardImplInterface {
 public:
  c10::DeviceType type() const override { return kType; }
  c10::DeviceIndex deviceCount() const noexcept override { return device_count(); }

  c10::Device exchangeDevice(c10::Device device) const override {
    const c10::Device before = getDevice();
    setDevice(device);
    return before;
  }
  c10::Device getDevice() const override { return {kType, current_device()}; }
  void setDevice(c10::Device device) const override {
    if (device.index() == current_device()) return;
    require_device(device.index());
    set_current_device(device.index());
  }
  void uncheckedSetDevice(c10::Device device) const noexcept override { set_current_device(device.index()); }
  void synchronizeDevice(c10::DeviceIndex device) const override { synchronize(device); }
  // every dtype, as the CPU's kernels take
  c10::DeviceCapability getDeviceCapability(c10::Device) const override { return {}; }

  c10::Stream getStream(c10::Device device) const override { return current_stream(index_of(device)); }
  c10::Stream getDefaultStream(c10::Device device) const override { return default_stream(index_of(device)); }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool is_urgent) const override {
    return stream_from_pool(index_of(device), is_urgent);
  }
  c10::Stream getNewStream(c10::Device device, int priority) const override {
    return stream_from_pool(index_of(device), priority < 0);
  }
  c10::Stream exchangeStream(c10::Stream stream) const override { return exchange_stream(stream); }
  void* getStreamNativeHandle(const c10::Stream stream) const override { return queue_of(stream).handle; }
  bool queryStream(const c10::Stream& stream) const override { return runtime().is_idle(queue_of(stream)); }
  void synchronizeStream(const c10::Stream& stream) const override { runtime().wait(queue_of(stream)); }

  void record(void** event, const c10::Stream& stream, const c10::DeviceIndex, const c10::EventFlag) const override {
    if (*event == nullptr) *event = runtime().create_event();
    runtime().record(*event, queue_of(stream));
  }
  void block(void* event, const c10::Stream& stream) const override {
    if (event != nullptr) runtime().block(queue_of(stream), event);
  }
  bool queryEvent(void* event) const override { return event == nullptr || runtime().is_done(event); }
  void synchronizeEvent(void* event) const override {
    if (event != nullptr) runtime().wait_for(event);
  }
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override {
    if (event != nullptr) runtime().destroy_event(event);
  }
  double elapsedTime(void* start, void* end, const c10::DeviceIndex) const override {
    return runtime().elapsed_ms(start, end);
  }
  void recordDataPtrOnStream(const c10::DataPtr& memory, const c10::Stream& stream) const override {
    allocator().recordStream(memory, stream);
  }

 private:
  static c10::DeviceIndex index_of(c10::Device device) {
    return device.has_index() ? device.index() : current_device();
  }
};

}  // namespace

void register_guard() { c10::impl::registerDeviceGuard(kType, new Guard); }

}  // namespace octavo::sycl_device
