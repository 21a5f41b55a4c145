// SPDX-License-Identifier: Apache-2.0
#include "octavo/device/arena.h"

#include <torch/csrc/utils/pybind.h>

#include "octavo/bindings/bind.h"

namespace py = pybind11;

namespace octavo {

namespace {

const char* arena_kind(ArenaKind kind) {
  switch (kind) {
    case ArenaKind::managed: return "managed";
    case ArenaKind::host: return "host";
    case ArenaKind::file: return "file";
  }
  return "";
}

py::dict figures_dict(const ArenaFigures& figures) {
  py::dict entry;
  entry["live_bytes"] = figures.asked_bytes;
  entry["peak_bytes"] = figures.peak_asked_bytes;
  entry["live_held_bytes"] = figures.held_bytes;
  entry["peak_held_bytes"] = figures.peak_held_bytes;
  entry["tensors"] = figures.tensors;
  return entry;
}

py::dict arena_stats_of(const Arena& arena) {
  py::dict entry = figures_dict(arena.figures());
  entry["kind"] = arena_kind(arena.kind());
  entry["budget_bytes"] = arena.options().budget_bytes;
  return entry;
}

/// Returns the figures of all arenas, by kind.
py::dict all_arena_stats() {
  py::dict all;
  for (const ArenaKind kind : {ArenaKind::managed, ArenaKind::host, ArenaKind::file}) {
    all[arena_kind(kind)] = figures_dict(arena_figures(kind));
  }
  return all;
}

void reset_all_arena_peaks() {
  for (const ArenaKind kind : {ArenaKind::managed, ArenaKind::host, ArenaKind::file}) reset_arena_peak(kind);
}

}  // namespace

void bind_arena(py::module_& m) {
  const auto no_gil = py::call_guard<py::gil_scoped_release>();
  py::class_<Arena, std::shared_ptr<Arena>>(m, "Arena")
      .def(py::init([](c10::Device device, std::string directory, std::uint64_t budget_bytes) {
             return Arena::make({device, std::move(directory), budget_bytes});
           }),
           py::arg("device"), py::arg("directory") = "", py::arg("budget_bytes") = 0)
      .def_static("of", &Arena::of, py::arg("device"))
      .def(
          "zeros",
          [](Arena& arena, const std::vector<std::int64_t>& shape, at::ScalarType dtype) {
            return arena.zeros(shape, dtype);
          },
          py::arg("shape"), py::arg("dtype"), no_gil)
      .def(
          "empty",
          [](Arena& arena, const std::vector<std::int64_t>& shape, at::ScalarType dtype) {
            return arena.empty(shape, dtype);
          },
          py::arg("shape"), py::arg("dtype"), no_gil)
      .def("zeros_like", &Arena::zeros_like, py::arg("tensor"), py::arg("dtype"), no_gil)
      .def("stats", &arena_stats_of)
      .def("reset_peak", &Arena::reset_peak)
      .def_property_readonly("device", [](const Arena& arena) { return arena.options().device; });
  m.def("arena_stats", &all_arena_stats);
  m.def("reset_arena_peaks", &reset_all_arena_peaks);
  m.def("is_managed", &is_managed);
  m.def("prefetch", &prefetch, no_gil);
  m.def("evict", &evict, no_gil);
}

}  // namespace octavo
