// SPDX-License-Identifier: Apache-2.0
#include "octavo/bindings/deepcompile.h"

#include <torch/csrc/utils/pybind.h>

#include <optional>
#include <utility>
#include <vector>

#include "octavo/deepcompile/parameter.h"

namespace py = pybind11;

namespace octavo {

void bind_deepcompile(py::module_& m) {
  const auto no_gil = py::call_guard<py::gil_scoped_release>();
  py::class_<dc::DSParam>(m, "DSParam")
      .def(py::init([](long id, std::vector<std::int64_t> shape, at::Tensor values,
                       const std::optional<at::Tensor>& grad_buffer, bool partitioned, std::int64_t offset,
                       bool persistent) {
             return dc::DSParam(id, std::move(shape), std::move(values), grad_buffer.value_or(at::Tensor()),
                                partitioned, offset, persistent);
           }),
           py::arg("id"), py::arg("ds_shape"), py::arg("ds_tensor"), py::arg("grad_buffer") = py::none(),
           py::arg("partitioned") = false, py::arg("offset") = 0, py::arg("persistent") = false)
      .def("get_ds_tensor", &dc::DSParam::getDSTensor, no_gil)
      .def("offload", &dc::DSParam::offload, no_gil)
      .def("reload", &dc::DSParam::reload, no_gil);
}

}  // namespace octavo
