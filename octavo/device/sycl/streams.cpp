// SPDX-License-Identifier: Apache-2.0
#include "octavo/device/sycl/streams.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <mutex>
#include <pthread.h>

#include "octavo/kernels/backend.h"
#include "octavo/kernels/error.h"

namespace octavo::sycl_device {

namespace {

constexpr int kPool = 32;
constexpr int kStreams = 1 + 2 * kPool;  // the default, the pool, the urgent pool
constexpr int kDevices = 64;

std::atomic<bool> used = false, forked = false;
thread_local c10::DeviceIndex device_of_thread = 0;
thread_local std::array<std::uint8_t, kDevices> stream_of_thread = {};

class Streams {
 public:
  octavo::Stream at(c10::DeviceIndex device, c10::StreamId id) {
    octavo::Stream stream = streams_[id].load(std::memory_order_acquire);
    return stream != nullptr ? stream : create(device, id);
  }
  c10::StreamId next(bool is_urgent) { return 1 + (is_urgent ? kPool : 0) + next_[is_urgent]++ % kPool; }
  void synchronize() {
    for (auto& slot : streams_) {
      if (octavo::Stream stream = slot.load(std::memory_order_acquire)) runtime().wait(stream);
    }
  }

 private:
  octavo::Stream create(c10::DeviceIndex device, c10::StreamId id) {
    const std::lock_guard lock(mutex_);
    octavo::Stream stream = streams_[id].load(std::memory_order_relaxed);
    if (stream != nullptr) return stream;
    stream = runtime().create_stream(device, id > kPool);
    streams_[id].store(stream, std::memory_order_release);
    return stream;
  }

  std::array<std::atomic<octavo::Stream>, kStreams> streams_ = {};
  std::array<std::atomic<unsigned>, 2> next_ = {};
  std::mutex mutex_;
};

Streams& streams_of(c10::DeviceIndex device) {
  require_device(device);
  static auto* all = new std::array<Streams, kDevices>;  // streams outlive what is destroyed at the end of the process
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

/// The back end's table, as `runtime` gives it; to look at it is not yet to use the device.
const DeviceRuntime& table() {
  static const DeviceRuntime& found = []() -> const DeviceRuntime& {
    const DeviceRuntime* table = backend("sycl").runtime;
    if (table == nullptr) fail(ErrorCode::internal, "device.sycl", "the sycl back end has no run time of a device");
    return *table;
  }();
  if (forked) {
    fail(ErrorCode::unsupported, "device.sycl", "expected the process that first used the device, got one forked from ",
         "it: start processes that use it with 'spawn'");
  }
  return found;
}

}  // namespace

const DeviceRuntime& runtime() {
  const DeviceRuntime& found = table();
  static std::once_flag first_use;
  std::call_once(first_use, [] {
    used = true;
    pthread_atfork(nullptr, nullptr, [] { forked = true; });
  });
  return found;
}

bool is_forked() noexcept { return forked; }

bool is_initialized() noexcept { return used; }

c10::DeviceIndex device_count() noexcept {
  static const int count = [] {
    try {
      return std::min(table().device_count(), kDevices);
    } catch (const std::exception&) {  // torch wants a number; who uses the device gets the reason
      return 0;
    }
  }();
  return static_cast<c10::DeviceIndex>(count);
}

void require_device(int device) {
  table();  // the reason, where there is none
  const int count = device_count();
  if (device >= 0 && device < count) return;
  fail(ErrorCode::invalid_argument, "device.sycl", "expected a device from sycl:0 to sycl:", count - 1,
       ", got sycl:", device);
}

c10::DeviceIndex current_device() noexcept { return device_of_thread; }

void set_current_device(c10::DeviceIndex device) noexcept { device_of_thread = device; }

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

octavo::Stream queue_of(c10::Stream stream) {
  require_stream(stream);
  return streams_of(stream.device_index()).at(stream.device_index(), stream.id());
}

void settle(c10::DeviceIndex device) {
  octavo::Stream queue = queue_of(current_stream(device));
  if (!runtime().is_idle(queue)) runtime().wait(queue);
}

void synchronize(c10::DeviceIndex device) { streams_of(device).synchronize(); }

}  // namespace octavo::sycl_device
