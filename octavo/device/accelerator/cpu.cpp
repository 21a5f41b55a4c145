// SPDX-License-Identifier: Apache-2.0
#include "octavo/device/accelerator/cpu.h"

#include <ATen/core/dispatch/Dispatcher.h>

#include <atomic>
#include <utility>

#include "octavo/kernels/error.h"

namespace octavo {

namespace {

c10::Stream numbered(c10::StreamId id) {
  return c10::Stream(c10::Stream::UNSAFE, c10::Device(c10::DeviceType::CPU, -1), id);
}

/// Number 0 is the default stream, of every thread.
thread_local c10::StreamId current_id = 0;
std::atomic<c10::StreamId> last_id = 0;

}  // namespace

c10::Device CpuAccelerator::require(std::string_view function, WhichDevice index) const {
  if (index && *index < 0) {
    fail(ErrorCode::invalid_argument, "device." + std::string(function), "expected an index of at least 0, got ",
         *index);
  }
  return c10::Device(c10::DeviceType::CPU);
}

c10::Stream CpuAccelerator::current_stream(WhichDevice) const { return numbered(current_id); }

c10::Stream CpuAccelerator::default_stream(WhichDevice) const { return numbered(0); }

c10::Stream CpuAccelerator::new_stream(WhichDevice, int) const { return numbered(++last_id); }

c10::Stream CpuAccelerator::exchange_stream(c10::Stream stream) const {
  return numbered(std::exchange(current_id, stream.id()));
}

std::map<std::string, std::int64_t> CpuAccelerator::memory_stats(WhichDevice) const {
  std::map<std::string, std::int64_t> stats;
  for (const std::string name : {"allocated_bytes", "reserved_bytes"}) {
    stats[name + ".all.current"] = memory_.resident_bytes();
    stats[name + ".all.peak"] = memory_.peak_resident_bytes();
  }
  return stats;
}

bool CpuAccelerator::is_fp16_supported() const {
  const auto probe = c10::Dispatcher::singleton().findSchema({"mkldnn::_is_mkldnn_fp16_supported", ""});
  return probe && probe->typed<bool()>().call();  // no such operator: this torch has no oneDNN
}

}  // namespace octavo
