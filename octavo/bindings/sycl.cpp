// SPDX-License-Identifier: Apache-2.0
#include <torch/csrc/utils/pybind.h>

#include "octavo/bindings/bind.h"
#include "octavo/comm/host_backend.h"
#include "octavo/device/sycl/devices.h"
#include "octavo/device/sycl/generator.h"
#include "octavo/device/sycl/memory.h"
#include "octavo/device/sycl/registration.h"
#include "octavo/device/sycl/twins.h"
#include "octavo/device/sycl_kernel.h"

namespace py = pybind11;

namespace octavo {

namespace {

/// `arguments` has the bytes of each argument as it lies in memory, and whether it is a pointer.
void launch(SyclKernel& kernel, c10::Device device, std::uint64_t groups, std::uint64_t group_size,
            const std::vector<std::pair<std::string, bool>>& arguments) {
  std::vector<KernelArgument> all;
  for (const auto& [value, is_pointer] : arguments) all.push_back({value.data(), value.size(), is_pointer});
  kernel.launch(device, groups, group_size, all.data(), all.size());
}

}  // namespace

void bind_sycl(py::module_& parent) {
  const auto no_gil = py::call_guard<py::gil_scoped_release>();
  py::module_ m = parent.def_submodule("sycl");
  m.def("register_device", &register_sycl_device);
  m.def("device_count", &sycl_device::device_count, no_gil);
  m.def("is_initialized", &sycl_device::is_initialized);
  m.def("is_in_bad_fork", &sycl_device::is_forked);
  m.def("set_memory_limit", &sycl_device::set_memory_limit);
  m.def("memory_limit", &sycl_device::memory_limit);
  m.def("available_memory", &sycl_device::available_memory);
  m.def("default_generator",
        [](int device) { return sycl_device::default_generator(sycl_device::require_device(device)); });
  m.def("seed_all", &sycl_device::seed_default_generators);
  m.def("empty", &sycl_device::empty_of_kind);
  m.def("act_as_gpu", &sycl_device::act_as_gpu);
  py::enum_<MemoryKind>(m, "MemoryKind")
      .value("device", MemoryKind::device)
      .value("shared", MemoryKind::shared)
      .value("host", MemoryKind::host);
  m.def("facts", &sycl_device::facts, no_gil);
  py::class_<HostBackend, c10d::Backend, c10::intrusive_ptr<HostBackend>>(m, "HostBackend")
      .def(py::init<c10::intrusive_ptr<c10d::Backend>>(), py::arg("on_cpu"));
  py::class_<SyclKernel>(m, "Kernel")
      .def(py::init<std::string, std::string>(), py::arg("source"), py::arg("function"))
      .def("launch", &launch, no_gil);
  py::class_<DeviceFacts>(m, "DeviceFacts")
      .def_readonly("name", &DeviceFacts::name)
      .def_readonly("vendor", &DeviceFacts::vendor)
      .def_readonly("driver", &DeviceFacts::driver)
      .def_readonly("platform", &DeviceFacts::platform)
      .def_readonly("is_cpu", &DeviceFacts::is_cpu)
      .def_readonly("has_fp64", &DeviceFacts::has_fp64)
      .def_readonly("has_fp16", &DeviceFacts::has_fp16)
      .def_readonly("reads_ordinary_memory", &DeviceFacts::reads_ordinary_memory)
      .def_readonly("total_memory", &DeviceFacts::total_bytes)
      .def_readonly("compute_units", &DeviceFacts::compute_units)
      .def_readonly("largest_group", &DeviceFacts::largest_group)
      .def("__repr__", [](const DeviceFacts& facts) {
        return c10::str("DeviceFacts(name='", facts.name, "', vendor='", facts.vendor, "', driver='", facts.driver,
                        "', platform='", facts.platform, "', is_cpu=", facts.is_cpu ? "True" : "False",
                        ", total_memory=", facts.total_bytes, ", compute_units=", facts.compute_units, ")");
      });
}

}  // namespace octavo
