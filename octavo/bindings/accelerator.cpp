// SPDX-License-Identifier: Apache-2.0
// octavo._C.Accelerator: the C++ accelerators under the names that Python's subclasses go on with.
#include "octavo/device/accelerator.h"

#include <torch/csrc/utils/pybind.h>

#include "octavo/bindings/accelerator.h"
#include "octavo/device/pinned.h"
#include "octavo/device/stream_event.h"

namespace py = pybind11;

namespace octavo {

namespace {

using Class = py::class_<Accelerator, std::shared_ptr<Accelerator>>;
using NoGil = py::call_guard<py::gil_scoped_release>;

py::arg_v which_device() { return py::arg("device_index") = py::none(); }

void bind_devices(Class& accelerator) {
  accelerator.def(py::init([](const std::string& name) { return std::shared_ptr(make_accelerator(name)); }))
      .def_property_readonly("_name", &Accelerator::name)
      .def("is_synchronized_device", &Accelerator::is_synchronized_device)
      .def("why_absent", &Accelerator::why_absent)
      .def("_require", &Accelerator::require, py::arg("function"), which_device())
      .def("device_name", &Accelerator::device_name, which_device())
      .def("device", &Accelerator::device, which_device())
      .def("device_count", &Accelerator::device_count)
      .def("current_device", &Accelerator::current_device)
      .def("set_device", &Accelerator::set_device, py::arg("device_index"))
      .def("synchronize", &Accelerator::synchronize, which_device(), NoGil());
}

/// As torch takes a negative seed: modulo 2^64.
template <void (Accelerator::*Seed)(std::uint64_t) const>
void negative(const Accelerator& accelerator, std::int64_t seed) {
  (accelerator.*Seed)(static_cast<std::uint64_t>(seed));
}

void bind_random_numbers(Class& accelerator) {
  accelerator.def("default_generator", &Accelerator::default_generator, which_device())
      .def("get_rng_state", &Accelerator::get_rng_state, which_device())
      .def("set_rng_state", &Accelerator::set_rng_state, py::arg("new_state"), which_device())
      .def("manual_seed", &Accelerator::manual_seed, py::arg("seed"))
      .def("manual_seed", negative<&Accelerator::manual_seed>, py::arg("seed"))
      .def("manual_seed_all", &Accelerator::manual_seed_all, py::arg("seed"))
      .def("manual_seed_all", negative<&Accelerator::manual_seed_all>, py::arg("seed"))
      .def("initial_seed", &Accelerator::initial_seed);
}

/// With torch.Stream; the classes that torch has for a device are Python's.
void bind_streams(Class& accelerator) {
  accelerator.def("current_stream", &Accelerator::current_stream, which_device())
      .def("default_stream", &Accelerator::default_stream, which_device())
      .def("_new_stream", &Accelerator::new_stream, which_device(), py::arg("priority") = 0)
      .def("_exchange_stream", &Accelerator::exchange_stream, py::arg("stream"));
}

void bind_memory(Class& accelerator) {
  accelerator.def("empty_cache", &Accelerator::empty_cache, NoGil())
      .def("memory_allocated", &Accelerator::memory_allocated, which_device())
      .def("max_memory_allocated", &Accelerator::max_memory_allocated, which_device())
      .def("memory_reserved", &Accelerator::memory_reserved, which_device())
      .def("max_memory_reserved", &Accelerator::max_memory_reserved, which_device())
      .def("reset_peak_memory_stats", &Accelerator::reset_peak_memory_stats, which_device())
      .def("memory_stats", &Accelerator::memory_stats, which_device())
      .def("total_memory", &Accelerator::total_memory, which_device())
      .def("available_memory", &Accelerator::available_memory, which_device())
      .def(
          "pinned_zeros",
          [](const Accelerator& self, const std::vector<std::int64_t>& shape, at::ScalarType dtype,
             std::int64_t align_bytes) { return self.pinned_zeros(shape, dtype, align_bytes); },
          py::arg("shape"), py::arg("dtype"), py::arg("align_bytes") = 0, NoGil());
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
      .def(py::init([](bool enable_timing, bool, bool) { return make_event(c10::DeviceType::CPU, enable_timing); }),
           py::arg("enable_timing") = false, py::arg("blocking") = false, py::arg("interprocess") = false)
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
