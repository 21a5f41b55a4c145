// SPDX-License-Identifier: Apache-2.0
#include "octavo/device/accelerator.h"

#include <ATen/Context.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <limits>

#include "octavo/device/accelerator/cpu.h"
#include "octavo/device/accelerator/cuda.h"
#include "octavo/device/accelerator/sycl.h"
#include "octavo/device/accelerator/xpu.h"
#include "octavo/kernels/error.h"

namespace octavo {

namespace {

c10::impl::VirtualGuardImpl guard(c10::Device device) { return c10::impl::VirtualGuardImpl(device.type()); }

}  // namespace

// ---- devices

std::string Accelerator::why_absent() const {
  if (is_available()) return "";
  return c10::impl::hasDeviceGuardImpl(type_) ? "no such device is visible to this process"
                                              : "this torch is built without " + name_;
}

c10::Device Accelerator::require(std::string_view function, WhichDevice index) const {
  const std::string where = "device." + std::string(function);
  const std::int64_t count = device_count();
  if (count == 0) {
    fail(ErrorCode::unsupported, where, "expected a device of type ", name_, ", got none: ", why_absent());
  }
  if (index && (*index < 0 || *index >= count)) {
    fail(ErrorCode::invalid_argument, where, "expected the index of one of ", count, " ", name_, " devices, got ",
         *index);
  }
  at::globalContext().lazyInitDevice(type_);
  return index ? device(index) : c10::impl::VirtualGuardImpl(type_).getDevice();
}

void Accelerator::require_type(std::string_view function, c10::Device device) const {
  if (device.type() == type_) return;
  fail(ErrorCode::invalid_argument, "device." + std::string(function), "expected a device of type ", name_, ", got ",
       device.str());
}

std::string Accelerator::device_name(WhichDevice index) const {
  return index ? name_ + ":" + std::to_string(device(index).index()) : name_;
}

c10::Device Accelerator::device(WhichDevice index) const {
  constexpr std::int64_t kMost = std::numeric_limits<c10::DeviceIndex>::max();
  if (index && (*index < 0 || *index > kMost)) {
    fail(ErrorCode::invalid_argument, "device.device", "expected an index from 0 to ", kMost, ", got ", *index);
  }
  return {type_, static_cast<c10::DeviceIndex>(index.value_or(-1))};
}

std::int64_t Accelerator::device_count() const {
  return c10::impl::hasDeviceGuardImpl(type_) ? c10::impl::VirtualGuardImpl(type_).deviceCount() : 0;
}

std::int64_t Accelerator::current_device() const { return require("current_device").index(); }

void Accelerator::set_device(std::int64_t index) const {
  const c10::Device device = require("set_device", index);
  guard(device).setDevice(device);
}

void Accelerator::synchronize(WhichDevice index) const {
  const c10::Device device = require("synchronize", index);
  guard(device).synchronizeDevice(device.index());
}

// ---- streams

c10::Stream Accelerator::current_stream(WhichDevice index) const {
  const c10::Device device = require("current_stream", index);
  return guard(device).getStream(device);
}

c10::Stream Accelerator::default_stream(WhichDevice index) const {
  const c10::Device device = require("default_stream", index);
  return guard(device).getDefaultStream(device);
}

c10::Stream Accelerator::new_stream(WhichDevice index, int priority) const {
  const c10::Device device = require("new_stream", index);
  return guard(device).getNewStream(device, priority);
}

c10::Stream Accelerator::exchange_stream(c10::Stream stream) const {
  require_type("exchange_stream", stream.device());
  return guard(require("exchange_stream", stream.device_index())).exchangeStream(stream);
}

// ---- precisions

std::vector<at::ScalarType> Accelerator::supported_dtypes() const {
  std::vector<at::ScalarType> dtypes = {at::kFloat};
  if (is_fp16_supported()) dtypes.push_back(at::kHalf);
  if (is_bf16_supported()) dtypes.push_back(at::kBFloat16);
  return dtypes;
}

// ---- by name

std::unique_ptr<Accelerator> make_accelerator(const std::string& name) {
  if (name == "cpu") return std::make_unique<CpuAccelerator>();
  if (name == "cuda") return std::make_unique<CudaAccelerator>();
  if (name == "xpu") return std::make_unique<XpuAccelerator>();
  if (name == "sycl") return std::make_unique<SyclAccelerator>();
  try {
    return std::make_unique<Accelerator>(c10::Device(name).type(), name);
  } catch (const c10::Error&) {
    fail(ErrorCode::invalid_argument, "device.make_accelerator",
         "expected cpu, cuda, xpu, sycl or another device type of this torch, got '", name, "'");
  }
}

}  // namespace octavo
