// SPDX-License-Identifier: Apache-2.0
#include "octavo/device/stream_event.h"

#include <ATen/ATen.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <chrono>
#include <optional>

#include "octavo/kernels/error.h"

namespace octavo {

namespace {

template <class Same>
const Same& of_same_kind(const StreamEvent& event) {
  const auto* same = dynamic_cast<const Same*>(&event);
  if (same == nullptr) {
    fail(ErrorCode::invalid_argument, "device.event",
         "elapsed time needs two events of one device type; these are of different ones");
  }
  return *same;
}

void require_times(bool known) {
  if (known) return;
  fail(ErrorCode::invalid_argument, "device.event",
       "elapsed time needs two recorded events made with timing (enable_timing=True); one of these is not");
}

class HostEvent final : public StreamEvent {
 public:
  explicit HostEvent(bool timing) : timing_(timing) {}
  void record(c10::Stream) override { time_ = Clock::now(); }
  void block(c10::Stream) const override {}
  bool query() const override { return true; }
  void synchronize() const override {}

  double elapsed_ms(const StreamEvent& later) const override {
    const auto& end = of_same_kind<HostEvent>(later);
    require_times(timing_ && end.timing_ && time_ && end.time_);
    return std::chrono::duration<double, std::milli>(*end.time_ - *time_).count();
  }

 private:
  using Clock = std::chrono::steady_clock;
  const bool timing_;
  std::optional<Clock::time_point> time_;
};

class DeviceEvent final : public StreamEvent {
 public:
  DeviceEvent(c10::DeviceType type, bool timing)
      : timing_(timing), event_(type, timing ? c10::EventFlag::BACKEND_DEFAULT : c10::EventFlag::PYTORCH_DEFAULT) {}
  void record(c10::Stream stream) override { event_.record(stream); }
  void block(c10::Stream stream) const override { event_.block(stream); }
  bool query() const override { return event_.query(); }
  void synchronize() const override { event_.synchronize(); }

  double elapsed_ms(const StreamEvent& later) const override {
    const auto& end = of_same_kind<DeviceEvent>(later);
    require_times(timing_ && end.timing_ && event_.was_marked_for_recording() && end.event_.was_marked_for_recording());
    return event_.elapsedTime(end.event_);
  }

 private:
  const bool timing_;
  c10::Event event_;
};

}  // namespace

c10::Stream current_stream_of(c10::Device device) {
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device);
}

std::unique_ptr<StreamEvent> make_event(c10::DeviceType type, bool timing) {
  if (type == c10::DeviceType::CPU) return std::make_unique<HostEvent>(timing);
  return std::make_unique<DeviceEvent>(type, timing);
}

void synchronize(c10::Device device) {
  if (!device.is_cpu()) c10::impl::VirtualGuardImpl(device.type()).synchronizeDevice(device.index());
}

std::shared_ptr<StreamEvent> copy_on_stream(const at::Tensor& to, const at::Tensor& from, const at::Tensor& of_device) {
  const c10::Device device = of_device.device();
  const c10::Stream stream = current_stream_of(device);
  to.copy_(from, /*non_blocking=*/true);
  c10::impl::VirtualGuardImpl(device.type()).recordDataPtrOnStream(of_device.storage().data_ptr(), stream);
  std::shared_ptr<StreamEvent> done = make_event(device.type(), /*timing=*/false);
  done->record(stream);
  return done;
}

}  // namespace octavo
