// SPDX-License-Identifier: Apache-2.0
#include <memory>
#include <mutex>
#include <utility>

#include "octavo/kernels/cuda/devices.h"
#include "octavo/kernels/cuda/table.h"

namespace octavo::cuda_backend {

namespace {

/// An event of CUDA's, which belongs to a device. It exists until its last user is done with it.
class DeviceEvent {
 public:
  explicit DeviceEvent(int device) : device_(device) {
    const CurrentContext current(device);
    driver().cuEventCreate(&event_, /*flags=*/0);
  }
  ~DeviceEvent() {
    try {
      const CurrentContext current(device_);
      driver().cuEventDestroy_v2(event_);
    } catch (const Error&) {  // the process ends, and the driver before it
    }
  }
  DeviceEvent(const DeviceEvent&) = delete;
  DeviceEvent& operator=(const DeviceEvent&) = delete;

  int device() const { return device_; }
  CUevent get() const { return event_; }

 private:
  int device_;
  CUevent event_ = nullptr;
};

/// What DeviceRuntime calls an event: it can be recorded on any device, one after another.
class Marker {
 public:
  /// Returns the event for a record on a device. It is the one before, where that was recorded on this device too.
  std::shared_ptr<DeviceEvent> of(int device) {
    const std::lock_guard lock(mutex_);
    if (event_ == nullptr || event_->device() != device) event_ = std::make_shared<DeviceEvent>(device);
    return event_;
  }
  /// Returns the event of the latest record; null where there was none.
  std::shared_ptr<DeviceEvent> latest() {
    const std::lock_guard lock(mutex_);
    return event_;
  }

 private:
  std::mutex mutex_;
  std::shared_ptr<DeviceEvent> event_;
};

Marker& marker_of(Event event) { return *static_cast<Marker*>(event); }

}  // namespace

Event create_event() { return new Marker; }

void destroy_event(Event event) { delete &marker_of(event); }

void record(Event event, Queue queue) {
  const int device = device_of(queue);
  const CurrentContext current(device);
  driver().cuEventRecord(marker_of(event).of(device)->get(), stream_of(queue));
}

bool is_done(Event event) {
  const auto recorded = marker_of(event).latest();
  if (recorded == nullptr) return true;
  const CurrentContext current(recorded->device());
  return driver().cuEventQuery.is_ready(recorded->get());
}

void wait_for(Event event) {
  const auto recorded = marker_of(event).latest();
  if (recorded == nullptr) return;
  const CurrentContext current(recorded->device());
  driver().cuEventSynchronize(recorded->get());
}

void block(Queue queue, Event event) {
  const auto recorded = marker_of(event).latest();
  if (recorded == nullptr) return;
  const CurrentContext current(device_of(queue));
  driver().cuStreamWaitEvent(stream_of(queue), recorded->get(), /*flags=*/0);
}

double elapsed_ms(Event start, Event end) {
  const auto first = marker_of(start).latest(), last = marker_of(end).latest();
  if (first == nullptr || last == nullptr) {
    fail(ErrorCode::invalid_argument, "device.cuda",
         "elapsed time needs two recorded events; one of these was not recorded");
  }
  const CurrentContext current(first->device());
  float elapsed = 0;
  driver().cuEventElapsedTime(&elapsed, first->get(), last->get());
  return static_cast<double>(elapsed);
}

}  // namespace octavo::cuda_backend
