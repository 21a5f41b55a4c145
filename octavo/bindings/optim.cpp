// SPDX-License-Identifier: Apache-2.0
// octavo._C: what optimizers decide beside their steps, which are operators (ops.cpp).
#include <torch/csrc/utils/pybind.h>

#include "octavo/bindings/bind.h"
#include "octavo/optim/zero_one_adam.h"

namespace py = pybind11;

namespace octavo {

void bind_optim(py::module_& m) {
  py::enum_<ZeroOneKind>(m, "ZeroOneKind")
      .value("variance", ZeroOneKind::variance)
      .value("sync", ZeroOneKind::sync)
      .value("local", ZeroOneKind::local);
  m.def(
      "zero_one_kind",
      [](std::uint64_t done, std::uint64_t variance_steps, std::uint64_t updates_an_interval,
         std::uint64_t steps_an_interval, std::uint64_t longest_interval) {
        return zero_one_kind(done, {variance_steps, updates_an_interval, steps_an_interval, longest_interval});
      },
      py::arg("done"), py::arg("variance_steps"), py::arg("updates_an_interval"), py::arg("steps_an_interval"),
      py::arg("longest_interval"));
}

}  // namespace octavo
