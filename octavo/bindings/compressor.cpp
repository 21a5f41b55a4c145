// SPDX-License-Identifier: Apache-2.0
// octavo._C: the Compressor, and what it says of its work.
#include "octavo/comm/compressor.h"

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/utils/pybind.h>

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "octavo/bindings/bind.h"
#include "octavo/bindings/durations.h"
#include "octavo/bindings/without_gil.h"
#include "octavo/comm/plan.h"
#include "octavo/kernels/error.h"

namespace py = pybind11;

namespace octavo {

namespace {

using BackendPtr = c10::intrusive_ptr<c10d::Backend>;

using ParameterTuples = std::vector<std::tuple<std::string, std::uint64_t, bool, std::uint64_t>>;

std::vector<ParameterInfo> infos_of(const ParameterTuples& parameters) {
  std::vector<ParameterInfo> infos;
  for (const auto& [name, count, exempt, rows] : parameters) infos.push_back({name, count, exempt, rows});
  return infos;
}

/// A back end, and the numbers by which errors name its ranks (Wire): their numbers in the process group that DDP has,
/// or among all ranks where a device mesh has several groups. None: their numbers in the back end.
using Connection = std::pair<BackendPtr, std::vector<int>>;

std::unique_ptr<Wire> wire_of(const Connection& connection, double timeout_s) {
  constexpr std::uint64_t kNotKnownYet = 0;
  return std::make_unique<Wire>(connection.first, milliseconds(timeout_s), kNotKnownYet, connection.second);
}

std::shared_ptr<Compressor> make(const Connection& connection, const Plan& plan, std::vector<ParameterInfo> parameters,
                                 double timeout_s, CompressorOptions options) {
  return make_without_gil<Compressor>(wire_of(connection, timeout_s), plan, std::move(parameters), std::move(options));
}

std::shared_ptr<Compressor> make_compressor(const BackendPtr& backend, const Plan& plan,
                                            const ParameterTuples& parameters, double timeout_s,
                                            const StatePaging& paging, std::uint64_t seed) {
  return make({backend, {}}, plan, infos_of(parameters), timeout_s, {.paging = paging, .seed = seed});
}

/// `rows` has for each parameter the number of elements in a row. Ranks own whole rows.
std::shared_ptr<Compressor> make_shard_compressor(const BackendPtr& backend, const Plan& plan,
                                                  const ParameterTuples& parameters,
                                                  const std::vector<std::uint64_t>& rows, double timeout_s,
                                                  const StatePaging& paging, std::uint64_t seed) {
  std::vector<ParameterInfo> infos = infos_of(parameters);
  if (rows.size() != infos.size() || std::ranges::count(rows, 0U) > 0) {
    fail(ErrorCode::invalid_argument, kCompressorWhere, "expected a row of one element or more for each of ",
         infos.size(), " parameters, got ", rows.size(), " rows, ", std::ranges::count(rows, 0U), " of them empty");
  }
  for (std::size_t i = 0; i < infos.size(); ++i) infos[i].ownership = Ownership::rows(rows[i]);
  return make({backend, {}}, plan, std::move(infos), timeout_s,
              {.collective = Collective::reduce_scatter, .paging = paging, .seed = seed});
}

/// `replicas` connects the ranks that hold this rank's shard, `shards` those that hold the others of its replica.
std::shared_ptr<Compressor> make_replica_compressor(const Connection& replicas, const Connection& shards,
                                                    const Plan& plan, const ParameterTuples& parameters,
                                                    double timeout_s, const StatePaging& paging, std::uint64_t seed) {
  return make(replicas, plan, infos_of(parameters), timeout_s,
              {.shards = wire_of(shards, timeout_s), .paging = paging, .seed = seed});
}

/// `host` connects the ranks of this rank's host, `between` those of the same number on all hosts.
std::shared_ptr<Compressor> make_host_compressor(const Connection& between, const Connection& host, const Plan& plan,
                                                 const ParameterTuples& parameters, double timeout_s,
                                                 const StatePaging& paging, std::uint64_t seed) {
  return make(between, plan, infos_of(parameters), timeout_s,
              {.host = wire_of(host, timeout_s), .paging = paging, .seed = seed});
}

/// Returns what `auto` does, and why.
py::dict auto_stats(const AutoStats& stats) {
  const AutoPlan::Report& report = stats.report;
  py::list buckets, tried;
  for (const AutoPlan::Bucket& bucket : report.buckets) {
    py::list parameters;
    for (const std::size_t index : bucket.parameters) parameters.append(stats.parameters[index]);
    py::dict alone;
    for (std::size_t choice = 0; choice < bucket.figures.by_plan.size(); ++choice) {
      const PhaseSeconds& s = bucket.figures.by_plan[choice];
      alone[py::str(stats.plans[choice])] =
          py::dict(py::arg("codec_s") = s.encode + s.reduce + s.decode, py::arg("link_s") = s.wait_up + s.wait_down);
    }
    buckets.append(py::dict(py::arg("plan") = stats.plans[bucket.plan], py::arg("values") = bucket.figures.values,
                            py::arg("parameters") = parameters, py::arg("ready_s") = bucket.figures.ready_s,
                            py::arg("alone") = alone));
  }
  for (const AutoPlan::Tried& one : report.tried) {
    py::list names;
    for (const std::size_t choice : one.plans) names.append(stats.plans[choice]);
    tried.append(py::dict(py::arg("plans") = names, py::arg("exchange_s") = one.exchange_s));
  }
  return py::dict(py::arg("settled") = report.is_settled, py::arg("measurements") = report.measurements,
                  py::arg("measured_steps") = report.measured_steps, py::arg("measured_s") = report.measured_s,
                  py::arg("buckets") = buckets, py::arg("tried") = tried);
}

py::dict stats(Compressor& compressor) {
  const auto [stats, automatic] = [&] {  // it may wait for a step under way, and Python must not wait with it
    const py::gil_scoped_release no_gil;
    return std::pair(compressor.stats(), compressor.auto_stats());
  }();
  py::dict result;
  result["wire_bytes"] = stats.wire_bytes;
  result["host_bytes"] = stats.host_bytes;
  result["dense_bytes"] = stats.dense_bytes;
  result["steps"] = stats.steps;
  result["nonfinite_steps"] = stats.nonfinite_steps;
  add_seconds(result, stats.seconds);
  if (stats.reused_share) result["reused_share"] = *stats.reused_share;
  if (automatic) result["auto"] = auto_stats(*automatic);
  return result;
}

py::list parameter_stats(Compressor& compressor) {
  const std::vector<ParameterStats> all = [&] {
    const py::gil_scoped_release no_gil;
    return compressor.parameter_stats();
  }();
  py::list result;
  for (const ParameterStats& one : all) {
    result.append(py::dict(py::arg("name") = one.name, py::arg("plan") = one.plan, py::arg("count") = one.count,
                           py::arg("wire_bytes") = one.wire_bytes, py::arg("dense_bytes") = one.dense_bytes,
                           py::arg("gradient_rms") = one.gradient_rms, py::arg("residual_rms") = one.residual_rms,
                           py::arg("reused_share") = one.reused_share,
                           py::arg("relative_error") = one.loss.relative_error, py::arg("cosine") = one.loss.cosine));
  }
  return result;
}

void set_momentum(Compressor& compressor, const std::map<std::string, std::pair<at::Tensor, at::Tensor>>& momenta,
                  double beta) {
  std::map<std::string, SentMomenta::Momentum> named;
  for (const auto& [name, pair] : momenta) named[name] = {pair.first, pair.second};
  compressor.set_momentum(named, beta);
}

using CompressorClass = py::class_<Compressor, std::shared_ptr<Compressor>>;

/// The values that a compressor is given and gives.
void bind_state(py::module_& m) {
  py::enum_<Exchange>(m, "Exchange")
      .value("planned", Exchange::planned)
      .value("gradients", Exchange::gradients)
      .value("nothing", Exchange::nothing);
  py::class_<StatePaging>(m, "StatePaging")
      .def(py::init<bool, std::string>(), py::arg("is_paged") = false, py::arg("directory") = "");
  py::class_<CompressorState>(m, "CompressorState")
      .def(py::init<std::map<std::string, at::Tensor>, bool, std::uint64_t, std::uint64_t, double, std::uint64_t>(),
           py::arg("tensors"), py::arg("of_momenta"), py::arg("step"), py::arg("seed"), py::arg("usual_factor"),
           py::arg("unclipped_steps"))
      .def_readonly("tensors", &CompressorState::tensors)
      .def_readonly("of_momenta", &CompressorState::of_momenta)
      .def_readonly("step", &CompressorState::step)
      .def_readonly("seed", &CompressorState::seed)
      .def_readonly("usual_factor", &CompressorState::usual_factor)
      .def_readonly("unclipped_steps", &CompressorState::unclipped_steps);
}

/// What a step sends, and what is remembered of it for the next ones.
void def_steps(CompressorClass& compressor) {
  const auto no_gil = py::call_guard<py::gil_scoped_release>();
  compressor.def_property_readonly("plan", py::cpp_function(&Compressor::plan, no_gil))
      .def_property_readonly("rank", &Compressor::peer_rank)
      .def_property_readonly("world_size", &Compressor::peer_count)
      .def("set_plan", &Compressor::set_plan, no_gil)
      .def("set_exchange", &Compressor::set_exchange, no_gil)
      .def_property_readonly("exchange", py::cpp_function(&Compressor::exchange, no_gil))
      .def("set_gradient_scale", &Compressor::set_gradient_scale, no_gil)
      .def("end_step", &Compressor::end_step, no_gil)
      .def("drop_step", &Compressor::drop_step, no_gil)
      .def("drop_step_or_residuals", &Compressor::drop_step_or_residuals, no_gil)
      .def("scale_step", &Compressor::scale_step, py::arg("factor"), no_gil)
      .def("drop_residuals", &Compressor::drop_residuals, no_gil)
      .def("state", &Compressor::state, no_gil)
      .def("load_state", &Compressor::load_state, py::arg("state"), no_gil)
      .def("load_world", &Compressor::load_world, py::arg("world"), no_gil)
      .def(
          "run_step",  // one bucket of all parameters in their order, for benchmarks
          [](Compressor& compressor, const at::Tensor& bucket) {
            std::vector<Slot> slots;
            const std::uint64_t reals = bucket.is_complex() ? 2 : 1;  // of an element
            std::uint64_t offset = 0;
            for (const ParameterStats& parameter : compressor.parameter_stats()) {
              slots.push_back({slots.size(), offset});
              offset += parameter.count / reals;
            }
            compressor.begin_step();
            compressor.reduce(bucket, std::move(slots));
          },
          py::arg("bucket"), no_gil)
      .def_property_readonly("step", py::cpp_function(&Compressor::step, no_gil));
}

/// Momenta and updates that are sent in place of gradients.
void def_momenta(CompressorClass& compressor) {
  const auto no_gil = py::call_guard<py::gil_scoped_release>();
  compressor.def("set_momentum", &set_momentum, py::arg("momenta"), py::arg("beta"), no_gil)
      .def(
          "keep_own_momenta",
          [](Compressor& compressor, const std::vector<std::string>& names, double update_beta, double kept_beta) {
            compressor.keep_own_momenta(names, {update_beta, kept_beta});
          },
          py::arg("names"), py::arg("update_beta"), py::arg("kept_beta"), no_gil)
      .def("keep_own_updates", &Compressor::keep_own_updates, py::arg("preconditioners"), py::arg("beta"), no_gil)
      .def("set_step_sizes", &Compressor::set_step_sizes, py::arg("step_sizes"), no_gil)
      .def(
          "own_updates",
          [](Compressor& compressor) {
            std::map<std::string, std::pair<at::Tensor, at::Tensor>> all;
            for (auto& [name, own] : compressor.own_updates()) all[name] = {own.momentum, own.update};
            return all;
          },
          no_gil)
      .def("exchange_updates", &Compressor::exchange_updates, no_gil)
      .def(
          "momentum_sample",
          [](const Compressor& compressor) {  // a copy: the hook's thread must not free what Python owns
            const SentMomenta::Sample sample = compressor.momentum_sample();
            return std::make_tuple(sample.parameter, sample.stride,
                                   sample.values.defined() ? sample.values.clone() : sample.values);
          },
          no_gil);
}

/// What a compressor says of its work.
void def_figures(CompressorClass& compressor) {
  const auto no_gil = py::call_guard<py::gil_scoped_release>();
  compressor.def("gradient_powers", &Compressor::gradient_powers, no_gil)
      .def("stats", &stats)
      .def("measure_next_step", &Compressor::measure_next_step, no_gil)
      .def("parameter_stats", &parameter_stats);
}

}  // namespace

void bind_compressor(py::module_& m) {
  bind_state(m);
  const StatePaging unpaged;
  CompressorClass compressor(m, "Compressor");
  compressor.def(py::init(&make_compressor), py::arg("backend"), py::arg("plan"), py::arg("parameters"),
                 py::arg("timeout_s"), py::arg("paging") = unpaged, py::arg("seed") = 0);
  def_steps(compressor);
  def_momenta(compressor);
  def_figures(compressor);
  m.def("shard_compressor", &make_shard_compressor, py::arg("backend"), py::arg("plan"), py::arg("parameters"),
        py::arg("rows"), py::arg("timeout_s"), py::arg("paging") = unpaged, py::arg("seed") = 0);
  m.def("replica_compressor", &make_replica_compressor, py::arg("replicas"), py::arg("shards"), py::arg("plan"),
        py::arg("parameters"), py::arg("timeout_s"), py::arg("paging") = unpaged, py::arg("seed") = 0);
  m.def("host_compressor", &make_host_compressor, py::arg("between"), py::arg("host"), py::arg("plan"),
        py::arg("parameters"), py::arg("timeout_s"), py::arg("paging") = unpaged, py::arg("seed") = 0);
}

}  // namespace octavo
