// SPDX-License-Identifier: Apache-2.0
#include <torch/csrc/utils/pybind.h>

#include "octavo/bindings/bind.h"
#include "octavo/device/pinned.h"
#include "octavo/device/stream_event.h"
#include "octavo/kernels/host_memory.h"

namespace py = pybind11;

namespace octavo {

namespace {

void bind_memory(py::module_& m) {
  py::class_<HostMemory>(m, "HostMemory")
      .def(py::init<>())
      .def("resident_bytes", &HostMemory::resident_bytes)
      .def("peak_resident_bytes", &HostMemory::peak_resident_bytes)
      .def("reset_peak_resident", &HostMemory::reset_peak_resident)
      .def("total_bytes", &HostMemory::total_bytes)
      .def("available_bytes", &HostMemory::available_bytes);
}

/// Binds Python's events of the CPU; the other devices have torch's.
void bind_event(py::module_& m) {
  py::class_<StreamEvent>(m, "HostEvent")
      .def(py::init([](bool enable_timing) { return make_event(c10::DeviceType::CPU, enable_timing); }),
           py::arg("enable_timing"))
      .def("_record",
           [](StreamEvent& event) {
             event.record(c10::Stream(c10::Stream::DEFAULT, c10::Device(c10::DeviceType::CPU)));
           })
      .def("query", &StreamEvent::query)
      .def("synchronize", &StreamEvent::synchronize)
      .def("elapsed_time", &StreamEvent::elapsed_ms, py::arg("end_event"));
}

void bind_pinned(py::module_& m) {
  m.def(
      "pinned_zeros",
      [](const std::vector<std::int64_t>& shape, at::ScalarType dtype, std::int64_t align_bytes, c10::Device device) {
        return pinned_zeros(shape, dtype, align_bytes, device.type());
      },
      py::arg("shape"), py::arg("dtype"), py::arg("align_bytes"), py::arg("for_device"),
      py::call_guard<py::gil_scoped_release>());
  m.def("is_pinned", &is_pinned);
  m.def("unpin", &unpin);
  m.def("pinned_bytes", &pinned_bytes);
  m.def("page_bytes", &page_bytes);
}

}  // namespace

void bind_host(py::module_& m) {
  bind_memory(m);
  bind_event(m);
  bind_pinned(m);
}

}  // namespace octavo
