// SPDX-License-Identifier: Apache-2.0
#include "octavo/outer/outer.h"

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/utils/pybind.h>

#include <memory>
#include <optional>
#include <tuple>
#include <utility>

#include "octavo/bindings/bind.h"
#include "octavo/bindings/durations.h"
#include "octavo/bindings/without_gil.h"
#include "octavo/kernels/error.h"

namespace py = pybind11;

namespace octavo {

namespace {

using OuterTuples = std::vector<std::tuple<std::string, at::Tensor, bool>>;

std::vector<OuterParameter> parameters_of(const OuterTuples& parameters) {
  std::vector<OuterParameter> all;
  for (const auto& [name, tensor, exempt] : parameters) all.emplace_back(name, tensor, exempt);
  return all;
}

WithoutGilPtr<Outer> make_outer(const c10::intrusive_ptr<c10d::Backend>& backend, double timeout_s, const Plan& plan,
                                const OuterTuples& parameters, const OuterOptions& options, std::uint64_t seed) {
  const py::gil_scoped_release released;  // ranks compare what they were given
  return make_without_gil<Outer>(backend, milliseconds(timeout_s), plan, parameters_of(parameters), options, seed);
}

py::list as_list(const std::vector<Outer::Skipped>& skipped) {
  py::list all;
  for (const auto& [fragment, round, ranks, returned] : skipped) {
    all.append(py::make_tuple(fragment, round, ranks, returned));
  }
  return all;
}

/// Makes the call with the GIL released: ranks wait for one another.
template <std::vector<Outer::Skipped> (Outer::*call)()>
py::list skipped_by(Outer& outer) {
  const std::vector<Outer::Skipped> skipped = [&] {
    const py::gil_scoped_release no_gil;
    return (outer.*call)();
  }();
  return as_list(skipped);
}

py::dict stats_of(const Outer& outer) {
  const OuterStats stats = outer.stats();
  py::dict result(py::arg("wire_bytes") = stats.wire_bytes, py::arg("dense_bytes") = stats.dense_bytes,
                  py::arg("steps") = stats.steps, py::arg("rounds") = stats.rounds,
                  py::arg("skipped_rounds") = stats.skipped_rounds, py::arg("waited_s") = stats.waited_s);
  add_seconds(result, stats.seconds);
  return result;
}

using PositionTuples = std::vector<std::tuple<std::uint64_t, std::uint64_t, std::uint64_t, bool, bool, double, double>>;

std::vector<Outer::Position> positions_of(const PositionTuples& positions) {
  std::vector<Outer::Position> all;
  for (const auto& [rounds, waiting, bytes, at_start, from_anchor, drifted, sent] : positions) {
    constexpr auto kMost = static_cast<std::uint64_t>(Outer::Waiting::not_finite);
    if (waiting > kMost) {
      fail(ErrorCode::invalid_argument, "outer.load", "the state is damaged: expected 0 to ", kMost,
           " for what a fragment waits for, got ", waiting);
    }
    all.push_back({rounds, Outer::Waiting{waiting}, bytes, at_start, from_anchor, {drifted, sent}});
  }
  return all;
}

}  // namespace

void bind_outer(py::module_& m) {
  const auto no_gil = py::call_guard<py::gil_scoped_release>();
  py::class_<OuterOptions>(m, "OuterOptions")
      .def(py::init([](std::uint64_t every, std::uint64_t delay, std::uint64_t fragments, double lr, double momentum,
                       double mix,
                       bool spread) { return OuterOptions{every, delay, fragments, lr, momentum, mix, spread}; }),
           py::kw_only(), py::arg("every"), py::arg("delay"), py::arg("fragments"), py::arg("lr"), py::arg("momentum"),
           py::arg("mix"), py::arg("spread"));
  py::class_<Outer, WithoutGilPtr<Outer>>(m, "Outer")
      .def(py::init(&make_outer), py::arg("backend"), py::arg("timeout_s"), py::arg("plan"), py::arg("parameters"),
           py::arg("options"), py::arg("seed"))
      .def_static(
          "require_plan", [](const Plan& plan) { Outer::require_plan(plan); }, py::arg("plan"))
      .def_static(
          "require",
          [](const Plan& plan, const OuterTuples& parameters, const OuterOptions& options) {
            Outer::require(plan, parameters_of(parameters), options);
          },
          py::arg("plan"), py::arg("parameters"), py::arg("options"))
      .def("after_step", &skipped_by<&Outer::after_step>)
      .def("synchronize", &skipped_by<&Outer::synchronize>)
      .def("wait", &Outer::wait, no_gil)
      .def_property_readonly("steps", &Outer::steps)
      .def("stats", &stats_of)
      .def("anchors", &Outer::anchors, no_gil)
      .def("shared_state", &Outer::shared_state, no_gil)
      .def("own_state", &Outer::own_state, no_gil)
      .def("positions",
           [](Outer& outer) {
             PositionTuples all;
             const py::gil_scoped_release released;
             for (const auto& [rounds, waiting, bytes, at_start, from_anchor, drifted] : outer.positions()) {
               all.emplace_back(rounds, static_cast<std::uint64_t>(waiting), bytes, at_start, from_anchor, drifted.now,
                                drifted.sent);
             }
             return all;
           })
      .def(
          "load",
          [](Outer& outer, const std::map<std::string, at::Tensor>& own, const PositionTuples& positions,
             std::uint64_t steps) { outer.load(own, positions_of(positions), steps); },
          py::arg("own"), py::arg("positions"), py::arg("steps"), no_gil)
      .def(
          "load_world",
          [](Outer& outer, const std::vector<std::map<std::string, at::Tensor>>& world, const PositionTuples& positions,
             std::uint64_t steps,
             std::optional<int> rank) { return outer.load_world(world, positions_of(positions), steps, rank); },
          py::arg("world"), py::arg("positions"), py::arg("steps"), py::arg("rank"), no_gil)
      .def("begin_at_start", &Outer::begin_at_start, no_gil);
}

}  // namespace octavo
