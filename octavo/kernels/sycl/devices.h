// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <mutex>
#include <string_view>
#include <sycl/sycl.hpp>
#include <vector>

#include "octavo/kernels/error.h"
#include "octavo/kernels/runtime.h"

/// The devices that SYCL finds here, numbered as DeviceRuntime numbers them: the GPUs, or the CPU where there is none.
/// ONEAPI_DEVICE_SELECTOR decides what SYCL finds.
namespace octavo::sycl_backend {

struct Device {
  sycl::device device;
  sycl::context context;
  bool operator==(const Device&) const = default;
};

/// Returns the devices; none where SYCL finds none. Throws Error unsupported where another library has loaded a SYCL
/// run time of its own, whose queues would mean nothing here. The list exists as long as the process, because SYCL's
/// statics may be destroyed before ours.
const std::vector<Device>& devices();

/// Returns a device by its number. Throws Error invalid_argument where there is no such device.
const Device& device_at(int index);

/// Returns the queue of the calling thread's own calls, whose memory is ordinary. It is a queue of the first device
/// that can read such memory, or of the CPU where only GPUs are numbered. Throws Error unsupported where there is none.
sycl::queue& host_queue();

/// The error handler of queues. With it wait_and_throw() throws a failure on the device, instead of ending the process.
void rethrow(sycl::exception_list failures);

/// Returns SYCL's queue behind one of ours; behind the calling thread it is host_queue().
inline sycl::queue& sycl_queue_of(Queue queue) {
  if (queue.is_calling_thread()) return host_queue();
  return *static_cast<sycl::queue*>(queue.handle);
}

/// Runs `body`; a failure of SYCL is thrown as Error internal with SYCL's message in one line.
template <class Body>
auto with_sycl_errors(std::string_view where, Body body) {
  try {
    return body();
  } catch (const sycl::exception& error) {
    std::string words = error.what();
    for (char& c : words) c = c == '\n' ? ' ' : c;
    fail(ErrorCode::internal, where, "SYCL failed: ", words);
  }
}

/// Returns the mutex that is held during each submission to a queue and each question about one.
std::mutex& submission_mutex();

/// Runs `body` on one thread at a time. `body` submits to a queue or asks whether it is idle, and must not wait. SYCL's
/// OpenCL adapter keeps a queue's latest event without a lock, and two threads would release it twice.
template <class Body>
auto alone(Body body) {
  const std::lock_guard lock(submission_mutex());
  return body();
}

}  // namespace octavo::sycl_backend
