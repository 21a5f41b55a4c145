// SPDX-License-Identifier: Apache-2.0
#include "octavo/device/sycl/registration.h"

#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/DeviceType.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <mutex>

#include "octavo/device/sycl/allocators.h"
#include "octavo/device/sycl/generator.h"
#include "octavo/device/sycl/memory_pool.h"
#include "octavo/device/sycl/operators.h"
#include "octavo/device/sycl/streams.h"
#include "octavo/kernels/error.h"

namespace octavo {

namespace sycl_device {

namespace {

/// What torch's device guards, stream guards and events do on the device.
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
  // every dtype, because the CPU's kernels take all of them
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
    if (event != nullptr && !is_forked()) runtime().destroy_event(event);  // after a fork it is the parent's
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

/// What torch asks of an accelerator besides guards: its generators, its pinned memory and whether it is there.
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
    if (!device) {
      fail(ErrorCode::invalid_argument, "device.sycl",
           "this pointer is not the start of a sycl tensor's memory: pass the data_ptr() of its untyped_storage()");
    }
    return {kType, *device};
  }
  void resizePrivateUse1Bytes(const c10::Storage& storage, std::size_t bytes) const override {
    resize_storage(storage, bytes);
  }
};

}  // namespace

}  // namespace sycl_device

void register_sycl_device() {
  using namespace sycl_device;
  static std::once_flag once;
  std::call_once(once, [] {
    c10::register_privateuse1_backend("sycl");
    c10::impl::registerDeviceGuard(kType, new Guard);
    at::RegisterPrivateUse1HooksInterface(new Hooks);
    c10::SetAllocator(kType, &allocator());
    at::setHostAllocator(kType, &pinned_allocator());
    install_cpu_allocator();
    register_memory_operators();
    register_copy();
    register_nn_operators();
    register_cpu_operators();  // last: what is registered above stays
  });
}

}  // namespace octavo
