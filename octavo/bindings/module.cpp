// SPDX-License-Identifier: Apache-2.0
// octavo._C: what is not an operator. Python gives names and objects; nothing is computed here.
#include <pybind11/pybind11.h>

#include "octavo/bindings/bind.h"
#include "octavo/bindings/errors.h"
#include "octavo/kernels/backend.h"
#include "octavo/kernels/error.h"

namespace py = pybind11;

namespace octavo {

namespace {

void bind_errors() {
  py::register_exception_translator([](std::exception_ptr thrown) {
    try {
      if (thrown) std::rethrow_exception(thrown);
    } catch (const Error& error) {
      PyErr_SetString(python_class(error.code()), error.what());
    }
  });
}

py::dict as_dict(const BackendStatus& status) {
  py::dict entry;
  entry["name"] = status.name;
  entry["available"] = status.available;
  entry["reason"] = status.reason;
  return entry;
}

void bind_backends(py::module_& m) {
  m.def("isa", [] { return std::string(cpu_isa()); });
  m.def("backend_status", [](const std::string& name) { return as_dict(backend_status(name)); });
  m.def("backends", [] {
    py::list all;
    for (const BackendStatus& status : backends()) all.append(as_dict(status));
    return all;
  });
}

}  // namespace

}  // namespace octavo

PYBIND11_MODULE(_C, m) {
  octavo::bind_errors();
  octavo::bind_backends(m);
  octavo::bind_arena(m);
  octavo::bind_autograd(m);
  octavo::bind_codecs(m);
  octavo::bind_compressor(m);
  octavo::bind_comm(m);
  octavo::bind_deepcompile(m);
  octavo::bind_host(m);
  octavo::bind_optim(m);
  octavo::bind_outer(m);
  octavo::bind_sycl(m);
}
