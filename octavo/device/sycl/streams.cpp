// SPDX-License-Identifier: Apache-2.0
#include "octavo/device/sycl/streams.h"

#include <array>
#include <atomic>
#include <mutex>

#include "octavo/kernels/error.h"

namespace octavo::sycl_device {

namespace {

constexpr int kPool = 32;
constexpr int kStreams = 1 + 2 * kPool;  // the default, the pool, the urgent pool

thread_local std::array<std::uint8_t, kMostDevices> stream_of_thread = {};

class Streams {
 public:
  Queue at(c10::DeviceIndex device, c10::StreamId id) {
    void* handle = handles_[id].load(std::memory_order_acquire);
    return {handle != nullptr ? handle : create(device, id), device};
  }
  c10::StreamId next(bool is_urgent) { return 1 + (is_urgent ? kPool : 0) + next_[is_urgent]++ % kPool; }
  void synchronize(c10::DeviceIndex device) {
    for (auto& slot : handles_) {
      if (void* handle = slot.load(std::memory_order_acquire)) runtime().wait({handle, device});
    }
  }

 private:
  void* create(c10::DeviceIndex device, c10::StreamId id) {
    const std::lock_guard lock(mutex_);
    void* handle = handles_[id].load(std::memory_order_relaxed);
    if (handle != nullptr) return handle;
    handle = runtime().create_queue(device, id > kPool).handle;
    handles_[id].store(handle, std::memory_order_release);
    return handle;
  }

  std::array<std::atomic<void*>, kStreams> handles_ = {};
  std::array<std::atomic<unsigned>, 2> next_ = {};
  std::mutex mutex_;
};

Streams& streams_of(c10::DeviceIndex device) {
  require_device(device);
  static auto* all =
      new std::array<Streams, kMostDevices>;  // streams outlive what is destroyed at the end of the process
  return (*all)[device];
}

c10::Stream stream_with(c10::DeviceIndex device, c10::StreamId id) {
  return c10::Stream(c10::Stream::UNSAFE, c10::Device(kType, device), id);
}

std::uint8_t& stream_of_this_thread(c10::DeviceIndex device) {
  require_device(device);
  return stream_of_thread[device];
}

void require_stream(c10::Stream stream) {
  if (stream.id() >= 0 && stream.id() < kStreams) return;
  fail(ErrorCode::invalid_argument, "device.sycl", "expected a stream from 0 to ", kStreams - 1,
       " of sycl:", int{stream.device_index()}, ", got ", stream.id());
}

}  // namespace

c10::Stream current_stream(c10::DeviceIndex device) { return stream_with(device, stream_of_this_thread(device)); }

c10::Stream default_stream(c10::DeviceIndex device) {
  require_device(device);
  return stream_with(device, 0);
}

c10::Stream stream_from_pool(c10::DeviceIndex device, bool is_urgent) {
  return stream_with(device, streams_of(device).next(is_urgent));
}

c10::Stream exchange_stream(c10::Stream stream) {
  require_stream(stream);
  const c10::Stream before = current_stream(stream.device_index());
  stream_of_thread[stream.device_index()] = static_cast<std::uint8_t>(stream.id());
  return before;
}

Queue queue_of(c10::Stream stream) {
  require_stream(stream);
  return streams_of(stream.device_index()).at(stream.device_index(), stream.id());
}

void settle(c10::DeviceIndex device) {
  const Queue queue = queue_of(current_stream(device));
  if (!runtime().is_idle(queue)) runtime().wait(queue);
}

void synchronize(c10::DeviceIndex device) { streams_of(device).synchronize(device); }

}  // namespace octavo::sycl_device
