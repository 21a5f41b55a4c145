// SPDX-License-Identifier: Apache-2.0
// octavo._C.Accelerator: the C++ accelerators under the names that Python's subclasses go on with.
#include "octavo/device/accelerator.h"

#include <torch/csrc/utils/pybind.h>

#include "octavo/bindings/accelerator.h"
#include "octavo/bindings/device_index.h"
#include "octavo/device/pinned.h"
#include "octavo/device/stream_event.h"
#include "octavo/kernels/error.h"

namespace py = pybind11;

namespace octavo {

namespace {

using Class = py::class_<Accelerator, std::shared_ptr<Accelerator>>;
using NoGil = py::call_guard<py::gil_scoped_release>;

/// The method for Python, which may run long and without Python's lock.
template <class Result>
auto of_device(Result (Accelerator::*method)(WhichDevice) const) {
  return [method](const Accelerator& self, const py::object& device) {
    const WhichDevice index = index_of(self, device);
    const py::gil_scoped_release no_gil;
    return (self.*method)(index);
  };
}

py::arg_v which_device() { return py::arg("device_index") = py::none(); }

/// A device without an index is the current one already.
void set_device(const Accelerator& self, const py::object& device) {
  const WhichDevice index = index_of(self, device);
  self.set_device(index ? *index : self.current_device());
}

void bind_devices(Class& accelerator) {
  accelerator.def(py::init([](const std::string& name) { return std::shared_ptr(make_accelerator(name)); }))
      .def_property_readonly("_name", &Accelerator::name)
      .def("is_synchronized_device", &Accelerator::is_synchronized_device)
      .def("why_absent", &Accelerator::why_absent)
      .def(
          "_require",
          [](const Accelerator& self, const std::string& function, const py::object& device) {
            return self.require(function, index_of(self, device));
          },
          py::arg("function"), which_device())
      .def("device_name", of_device(&Accelerator::device_name), which_device())
      .def("device", of_device(&Accelerator::device), which_device())
      .def("device_count", &Accelerator::device_count)
      .def("current_device", &Accelerator::current_device)
      .def("set_device", set_device, py::arg("device_index"))
      .def("synchronize", of_device(&Accelerator::synchronize), which_device());
}

/// As torch takes a negative seed: modulo 2^64.
template <void (Accelerator::*Seed)(std::uint64_t) const>
void negative(const Accelerator& accelerator, std::int64_t seed) {
  (accelerator.*Seed)(static_cast<std::uint64_t>(seed));
}

void bind_random_numbers(Class& accelerator) {
  accelerator.def("default_generator", of_device(&Accelerator::default_generator), which_device())
      .def("get_rng_state", of_device(&Accelerator::get_rng_state), which_device())
      .def(
          "set_rng_state",
          [](const Accelerator& self, const at::Tensor& state, const py::object& device) {
            self.set_rng_state(state, index_of(self, device));
          },
          py::arg("new_state"), which_device())
      .def("manual_seed", &Accelerator::manual_seed, py::arg("seed"))
      .def("manual_seed", negative<&Accelerator::manual_seed>, py::arg("seed"))
      .def("manual_seed_all", &Accelerator::manual_seed_all, py::arg("seed"))
      .def("manual_seed_all", negative<&Accelerator::manual_seed_all>, py::arg("seed"))
      .def("initial_seed", &Accelerator::initial_seed);
}

/// With torch.Stream; the classes that torch has for a device are Python's.
void bind_streams(Class& accelerator) {
  accelerator.def("current_stream", of_device(&Accelerator::current_stream), which_device())
      .def("default_stream", of_device(&Accelerator::default_stream), which_device())
      .def("_new_stream", [](const Accelerator& self) { return self.new_stream(); })
      .def("_exchange_stream", &Accelerator::exchange_stream, py::arg("stream"));
}

/// `align_bytes` is no bool: who passes one means another parameter.
at::Tensor pinned_zeros_at(const Accelerator& self, const std::vector<std::int64_t>& shape, at::ScalarType dtype,
                           const py::int_& align_bytes) {
  if (py::isinstance<py::bool_>(align_bytes)) {
    fail(ErrorCode::wrong_type, "device.pinned", "expected align_bytes as an int, got a bool");
  }
  const auto alignment_bytes = align_bytes.cast<std::int64_t>();
  const py::gil_scoped_release no_gil;
  return self.pinned_zeros(shape, dtype, alignment_bytes);
}

void bind_memory(Class& accelerator) {
  accelerator.def("empty_cache", &Accelerator::empty_cache, NoGil())
      .def("memory_allocated", of_device(&Accelerator::memory_allocated), which_device())
      .def("max_memory_allocated", of_device(&Accelerator::max_memory_allocated), which_device())
      .def("memory_reserved", of_device(&Accelerator::memory_reserved), which_device())
      .def("max_memory_reserved", of_device(&Accelerator::max_memory_reserved), which_device())
      .def("reset_peak_memory_stats", of_device(&Accelerator::reset_peak_memory_stats), which_device())
      .def("memory_stats", of_device(&Accelerator::memory_stats), which_device())
      .def("total_memory", of_device(&Accelerator::total_memory), which_device())
      .def("available_memory", of_device(&Accelerator::available_memory), which_device())
      .def("pinned_zeros", pinned_zeros_at, py::arg("shape"), py::arg("dtype"), py::arg("align_bytes") = 0);
}

void bind_constants(Class& accelerator) {
  accelerator.def("is_bf16_supported", &Accelerator::is_bf16_supported)
      .def("is_fp16_supported", &Accelerator::is_fp16_supported)
      .def("is_fp64_supported", &Accelerator::is_fp64_supported)
      .def("is_triton_supported", &Accelerator::is_triton_supported)
      .def("communication_backend_name", &Accelerator::communication_backend_name)
      .def("visible_devices_envs", &Accelerator::visible_devices_envs)
      .def("export_envs", &Accelerator::export_envs);
}

/// Python's events of the CPU; the other devices have torch's.
void bind_host_event(py::module_& m) {
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

}  // namespace

void bind_accelerator(py::module_& m) {
  Class accelerator(m, "Accelerator");
  bind_devices(accelerator);
  bind_random_numbers(accelerator);
  bind_streams(accelerator);
  bind_memory(accelerator);
  bind_constants(accelerator);
  bind_host_event(m);
  m.def("is_pinned", &is_pinned);
  m.def("unpin", &unpin);
  m.def("pinned_bytes", &pinned_bytes);
  m.def("page_bytes", &page_bytes);
}

}  // namespace octavo
