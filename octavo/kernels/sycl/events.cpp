// SPDX-License-Identifier: Apache-2.0
#include <mutex>
#include <optional>
#include <utility>

#include "octavo/kernels/sycl/devices.h"
#include "octavo/kernels/sycl/table.h"

namespace octavo::sycl_backend {

namespace {

constexpr const char* kWhere = "device.sycl";

/// The event of the latest record, if there is one.
class Marker {
 public:
  void set(sycl::event event) {
    const std::lock_guard lock(mutex_);
    event_ = std::move(event);
  }
  std::optional<sycl::event> get() {
    const std::lock_guard lock(mutex_);
    return event_;
  }

 private:
  std::mutex mutex_;
  std::optional<sycl::event> event_;
};

Marker& marker_of(Event event) { return *static_cast<Marker*>(event); }

}  // namespace

Event create_event() { return new Marker; }

void destroy_event(Event event) { delete &marker_of(event); }

void record(Event event, Queue queue) {
  namespace oneapi = sycl::ext::oneapi::experimental;
  with_sycl_errors(
      kWhere, [&] { marker_of(event).set(alone([&] { return oneapi::submit_profiling_tag(sycl_queue_of(queue)); })); });
}

bool is_done(Event event) {
  const auto recorded = marker_of(event).get();
  return !recorded || with_sycl_errors(kWhere, [&] {
    return recorded->get_info<sycl::info::event::command_execution_status>() ==
           sycl::info::event_command_status::complete;
  });
}

void wait_for(Event event) {
  auto recorded = marker_of(event).get();
  if (recorded) with_sycl_errors(kWhere, [&] { recorded->wait_and_throw(); });
}

void block(Queue queue, Event event) {
  const auto recorded = marker_of(event).get();
  if (recorded) {
    with_sycl_errors(kWhere, [&] { alone([&] { sycl_queue_of(queue).ext_oneapi_submit_barrier({*recorded}); }); });
  }
}

double elapsed_ms(Event start, Event end) {
  const auto first = marker_of(start).get(), last = marker_of(end).get();
  if (!first || !last) {
    fail(ErrorCode::invalid_argument, kWhere, "elapsed time needs two recorded events; one of these was not recorded");
  }
  return with_sycl_errors(kWhere, [&] {
    const auto end_ns = [](const sycl::event& event) {
      return static_cast<double>(event.get_profiling_info<sycl::info::event_profiling::command_end>());
    };
    return (end_ns(*last) - end_ns(*first)) * 1e-6;
  });
}

}  // namespace octavo::sycl_backend
