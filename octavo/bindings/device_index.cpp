// SPDX-License-Identifier: Apache-2.0
#include "octavo/bindings/device_index.h"

#include <torch/csrc/utils/pybind.h>

#include <charconv>

#include "octavo/kernels/error.h"

namespace py = pybind11;

namespace octavo {

namespace {

constexpr auto kWhere = "device.device_index";

WhichDevice index_on(const Accelerator& accelerator, c10::Device device) {
  accelerator.require_type("device_index", device);
  return device.has_index() ? WhichDevice(device.index()) : std::nullopt;
}

WhichDevice index_in(const Accelerator& accelerator, const std::string& text) {
  std::int64_t index = 0;
  const char* const end = text.data() + text.size();
  const auto read = std::from_chars(text.data(), end, index);
  if (read.ec == std::errc() && read.ptr == end) return index;
  try {
    return index_on(accelerator, c10::Device(text));
  } catch (const c10::Error&) {
    fail(ErrorCode::invalid_argument, kWhere, "expected an index or a device of type ", accelerator.name(), ", got '",
         text, "'");
  }
}

}  // namespace

WhichDevice index_of(const Accelerator& accelerator, const py::object& asked) {
  if (asked.is_none()) return std::nullopt;
  if (PyIndex_Check(asked.ptr())) return asked.cast<std::int64_t>();
  if (py::isinstance<py::str>(asked)) return index_in(accelerator, asked.cast<std::string>());
  if (THPDevice_Check(asked.ptr())) return index_on(accelerator, asked.cast<c10::Device>());
  fail(ErrorCode::wrong_type, kWhere, "expected an int, a str, a torch.device or None, got ",
       Py_TYPE(asked.ptr())->tp_name);
}

}  // namespace octavo
