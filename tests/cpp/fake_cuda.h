// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/Stream.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <map>
#include <mutex>
#include <stdexcept>
#include <string>
#include <utility>

#include "octavo/kernels/backend.h"

namespace octavo {

/// Implements torch's streams and events of CUDA on the devices of tests/fake_device. Stream 0 is a device's default
/// stream; each thread has its own current stream.
class FakeCudaGuard : public c10::impl::DeviceGuardImplInterface {
 public:
  static constexpr auto kType = c10::DeviceType::CUDA;

  c10::DeviceType type() const override { return kType; }
  c10::DeviceIndex deviceCount() const noexcept override { return 2; }
  c10::Device getDevice() const override { return {kType, current_}; }
  void setDevice(c10::Device device) const override { current_ = device.index(); }
  void uncheckedSetDevice(c10::Device device) const noexcept override { current_ = device.index(); }
  c10::Device exchangeDevice(c10::Device device) const override {
    const c10::Device before = getDevice();
    setDevice(device);
    return before;
  }

  c10::Stream getStream(c10::Device device) const override { return stream(device, stream_of_thread()[index(device)]); }
  c10::Stream getDefaultStream(c10::Device device) const override { return stream(device, 0); }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override { return stream(device, ++made_); }
  c10::Stream exchangeStream(c10::Stream next) const override {
    const c10::Stream before = getStream(next.device());
    stream_of_thread()[index(next.device())] = next.id();
    return before;
  }
  void* getStreamNativeHandle(const c10::Stream stream) const override { return queue(stream).handle; }
  bool queryStream(const c10::Stream& stream) const override { return runtime().is_idle(queue(stream)); }
  void synchronizeStream(const c10::Stream& stream) const override { runtime().wait(queue(stream)); }
  void synchronizeDevice(const c10::DeviceIndex device) const override {
    const std::lock_guard lock(mutex_);
    for (const auto& [key, queue] : queues_) {
      if (key.first == device) runtime().wait(queue);
    }
    if (const std::string failure = std::exchange(failure_, ""); !failure.empty()) throw std::runtime_error(failure);
  }
  /// Lets the next synchronizeDevice() tell that a kernel has failed.
  void fail_next_wait(std::string failure) { failure_ = std::move(failure); }

  void record(void** event, const c10::Stream& stream, const c10::DeviceIndex, const c10::EventFlag) const override {
    if (*event == nullptr) *event = runtime().create_event();
    runtime().record(*event, queue(stream));
  }
  void block(void* event, const c10::Stream& stream) const override { runtime().block(queue(stream), event); }
  bool queryEvent(void* event) const override { return runtime().is_done(event); }
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override {
    if (event != nullptr) runtime().destroy_event(event);
  }

 private:
  static const DeviceRuntime& runtime() { return *backend("cuda").runtime; }
  static std::size_t index(c10::Device device) { return static_cast<std::size_t>(device.index()); }
  static std::array<c10::StreamId, 2>& stream_of_thread() {
    thread_local std::array<c10::StreamId, 2> all = {};
    return all;
  }
  static c10::Stream stream(c10::Device device, c10::StreamId id) {
    return c10::Stream(c10::Stream::UNSAFE, device, id);
  }
  Queue queue(c10::Stream stream) const {
    const std::lock_guard lock(mutex_);
    Queue& known = queues_[{stream.device_index(), stream.id()}];
    if (known.handle == nullptr) known = runtime().create_queue(stream.device_index(), /*is_urgent=*/false);
    return known;
  }

  static inline thread_local c10::DeviceIndex current_ = 0;
  mutable std::atomic<c10::StreamId> made_ = 0;
  mutable std::string failure_;
  mutable std::mutex mutex_;
  mutable std::map<std::pair<c10::DeviceIndex, c10::StreamId>, Queue> queues_;
};

/// A test with torch's device `cuda` on the fake devices. It needs FAKE_PLUGIN, the plug-in's path. All tensors must be
/// freed before it ends.
template <class Guard = FakeCudaGuard>
class FakeCudaTest : public testing::Test {
 protected:
  static constexpr auto kCuda = static_cast<std::size_t>(FakeCudaGuard::kType);

  void SetUp() override {
    setenv("OCTAVO_CUDA_PLUGIN", FAKE_PLUGIN, /*overwrite=*/1);
    before_ = c10::impl::device_guard_impl_registry[kCuda].exchange(&guard_);
    ASSERT_STREQ(backend("cuda").name, "fake");
  }
  void TearDown() override {
    guard_.synchronizeDevice(0);
    guard_.synchronizeDevice(1);
    c10::impl::device_guard_impl_registry[kCuda] = before_;
    unsetenv("OCTAVO_CUDA_PLUGIN");
  }

  Guard guard_;
  const c10::impl::DeviceGuardImplInterface* before_ = nullptr;
};

}  // namespace octavo
