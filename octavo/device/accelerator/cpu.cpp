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

std::string CpuAccelerator::device_name(WhichDevice index) const { return require("device_name", index).str(); }

c10::Device CpuAccelerator::device(WhichDevice index) const { return require("device", index); }

c10::Stream CpuAccelerator::current_stream(WhichDevice index) const {
  require("current_stream", index);
  return numbered(current_id);
}

c10::Stream CpuAccelerator::default_stream(WhichDevice index) const {
  require("default_stream", index);
  return numbered(0);
}

c10::Stream CpuAccelerator::new_stream(WhichDevice index, int) const {
  require("new_stream", index);
  return numbered(++last_id);
}

c10::Stream CpuAccelerator::exchange_stream(c10::Stream stream) const {
  require_type("exchange_stream", stream.device());
  return numbered(std::exchange(current_id, stream.id()));
}

std::int64_t CpuAccelerator::memory_allocated(WhichDevice index) const {
  return memory("memory_allocated", index).resident_bytes();
}

std::int64_t CpuAccelerator::max_memory_allocated(WhichDevice index) const {
  return memory("max_memory_allocated", index).peak_resident_bytes();
}

std::int64_t CpuAccelerator::memory_reserved(WhichDevice index) const {
  return memory("memory_reserved", index).resident_bytes();
}

std::int64_t CpuAccelerator::max_memory_reserved(WhichDevice index) const {
  return memory("max_memory_reserved", index).peak_resident_bytes();
}

void CpuAccelerator::reset_peak_memory_stats(WhichDevice index) const {
  memory("reset_peak_memory_stats", index).reset_peak_resident();
}

std::int64_t CpuAccelerator::total_memory(WhichDevice index) const {
  return memory("total_memory", index).total_bytes();
}

std::int64_t CpuAccelerator::available_memory(WhichDevice index) const {
  return memory("available_memory", index).available_bytes();
}

std::map<std::string, std::int64_t> CpuAccelerator::memory_stats(WhichDevice index) const {
  const HostMemory& host = memory("memory_stats", index);
  std::map<std::string, std::int64_t> stats;
  for (const std::string name : {"allocated_bytes", "reserved_bytes"}) {
    stats[name + ".all.current"] = host.resident_bytes();
    stats[name + ".all.peak"] = host.peak_resident_bytes();
  }
  return stats;
}

const HostMemory& CpuAccelerator::memory(std::string_view function, WhichDevice index) const {
  require(function, index);
  return memory_;
}

bool CpuAccelerator::is_fp16_supported() const {
  const auto probe = c10::Dispatcher::singleton().findSchema({"mkldnn::_is_mkldnn_fp16_supported", ""});
  return probe && probe->typed<bool()>().call();  // no such operator: this torch has no oneDNN
}

}  // namespace octavo
