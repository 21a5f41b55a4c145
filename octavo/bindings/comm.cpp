// SPDX-License-Identifier: Apache-2.0
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/reducer.hpp>
#include <torch/csrc/utils/pybind.h>

#include <memory>
#include <optional>
#include <utility>

#include "octavo/bindings/bind.h"
#include "octavo/bindings/echo_backend.h"
#include "octavo/bindings/errors.h"
#include "octavo/bindings/seconds.h"
#include "octavo/bindings/without_gil.h"
#include "octavo/codec/count_sketch.h"
#include "octavo/comm/all_reduce.h"
#include "octavo/comm/compressor.h"
#include "octavo/comm/ddp_hook.h"
#include "octavo/comm/fsdp_hook.h"
#include "octavo/comm/plan.h"
#include "octavo/comm/shared/shared_backend.h"
#include "octavo/device/dispatch.h"
#include "octavo/kernels/error.h"
#include "octavo/optim/zero_one_adam.h"

namespace py = pybind11;

namespace octavo {

namespace {

using BackendPtr = c10::intrusive_ptr<c10d::Backend>;

const Codec& codec_of(const Plan& plan) {
  if (!plan.map) return *plan.codec;
  fail(ErrorCode::unsupported, "codec", "the plan ", plan.text(),
       " maps whole tensors, by their shape, in several rounds: it has no payload; octavo.all_reduce runs it");
}

void bind_plan(py::module_& m) {
  py::class_<Plan>(m, "Plan")
      .def(py::init(&Plan::parse), py::arg("text"))
      .def(py::init([](const Plan& plan) { return plan; }), py::arg("plan"))
      .def(py::pickle([](const Plan& plan) { return plan.text(); },
                      [](const std::string& text) { return Plan::parse(text); }))
      .def_property_readonly("error_feedback", [](const Plan& plan) { return plan.feedback != nullptr; })
      .def_property_readonly("momentum", [](const Plan& plan) { return plan.momentum(); })
      .def("with_momentum", &Plan::with_momentum, py::arg("momentum"))
      .def("averaged_over_hits", &Plan::averaged_over_hits)
      .def("with_decay", &Plan::with_decay, py::arg("decay"))
      .def_property_readonly("votes", &Plan::votes)
      .def_property_readonly("leaves_unsent", [](const Plan& plan) { return plan.codec->traits().leaves_unsent; })
      .def_property_readonly("is_auto", [](const Plan& plan) { return plan.choices != nullptr; })
      .def("for_momentum", &Plan::for_momentum)
      .def("require_rules_fit", &Plan::require_rules_fit, py::arg("parameters"))
      .def(
          "payload_bytes", [](const Plan& plan, std::uint64_t count) { return codec_of(plan).payload_bytes(count); },
          py::arg("count"))
      .def("__str__", &Plan::text)
      .def(
          "__eq__", [](const Plan& a, const Plan& b) { return a.text() == b.text(); }, py::is_operator())
      .def("__hash__", [](const Plan& plan) { return py::hash(py::str(plan.text())); })
      .def("__repr__", [](const Plan& plan) { return "Plan('" + plan.text() + "')"; });
}

PayloadPart payload_of(const Codec& codec, const at::Tensor& values, const at::Tensor& payload) {
  const auto count = static_cast<std::uint64_t>(values.numel());
  const auto bytes = codec.payload_bytes(count);
  if (static_cast<std::uint64_t>(payload.numel()) < bytes || !values.is_contiguous() || !payload.is_contiguous()) {
    fail(ErrorCode::invalid_argument, "codec", "expected contiguous values and a contiguous payload of at least ",
         bytes, " bytes, got ", values.is_contiguous() ? "contiguous" : "strided", " values and a ",
         payload.is_contiguous() ? "contiguous" : "strided", " payload of ", payload.numel());
  }
  return {payload.mutable_data_ptr<std::uint8_t>(), count, {0, count}};
}

void require_bytes(const at::Tensor& bytes, std::int64_t least) {
  if (bytes.is_cpu() && bytes.scalar_type() == at::kByte && bytes.is_contiguous() && bytes.numel() >= least) return;
  fail(ErrorCode::invalid_argument, "codec", "expected a contiguous uint8 tensor of the CPU with at least ", least,
       " bytes, got ", bytes.numel(), " of ", toString(bytes.scalar_type()), " on ", bytes.device().str());
}

rules::Residual* residual_of(const std::optional<at::Tensor>& tensor) {
  return tensor ? reinterpret_cast<rules::Residual*>(tensor->mutable_data_ptr<at::BFloat16>()) : nullptr;
}

/// Runs one tensor through a codec, for the benchmarks. Values are contiguous float32, residuals bfloat16 and a payload
/// has payload_bytes(), all on one device. There is no warm-up.
void bind_coding(py::module_& m) {
  const auto no_gil = py::call_guard<py::gil_scoped_release>();
  m.def(
      "encode",
      [](const Plan& plan, const at::Tensor& values, at::Tensor payload, const std::optional<at::Tensor>& residual,
         const std::optional<at::Tensor>& next_residual) {
        const Codec& codec = codec_of(plan);
        codec.encode(values.device(), {values.const_data_ptr<float>(), residual_of(residual)},
                     payload_of(codec, values, payload), residual_of(next_residual));
      },
      py::arg("plan"), py::arg("values"), py::arg("payload"), py::arg("residual") = py::none(),
      py::arg("next_residual") = py::none(), no_gil);
  m.def(
      "pack",  // what is sent of a payload in the host's memory
      [](const Plan& plan, const at::Tensor& payload, std::uint64_t count) {
        const Codec& codec = codec_of(plan);
        const auto bytes = static_cast<std::int64_t>(codec.payload_bytes(count));
        require_bytes(payload, bytes);
        const at::Tensor packed = at::empty({bytes}, at::kByte);
        const std::uint64_t used =
            codec.pack(payload.const_data_ptr<std::uint8_t>(), count, packed.mutable_data_ptr<std::uint8_t>());
        return packed.narrow(0, 0, static_cast<std::int64_t>(used));
      },
      py::arg("plan"), py::arg("payload"), py::arg("count"), no_gil);
  m.def(
      "unpack",
      [](const Plan& plan, const at::Tensor& packed, std::uint64_t count) {
        const Codec& codec = codec_of(plan);
        require_bytes(packed, 0);
        at::Tensor payload = at::zeros({static_cast<std::int64_t>(codec.payload_bytes(count))}, at::kByte);
        const auto used = codec.unpack({packed.const_data_ptr<std::uint8_t>(), packed.nbytes()}, count,
                                       payload.mutable_data_ptr<std::uint8_t>());
        if (used != packed.nbytes()) {
          fail(ErrorCode::invalid_argument, "codec", "these ", packed.nbytes(), " bytes are no packed payload of ",
               count, " values of ", plan.text());
        }
        return payload;
      },
      py::arg("plan"), py::arg("packed"), py::arg("count"), no_gil);
  m.def(
      "decode",
      [](const Plan& plan, const at::Tensor& payload, at::Tensor values) {
        const Codec& codec = codec_of(plan);
        codec.decode(values.device(), payload_of(codec, values, payload), Store::uncached,
                     values.mutable_data_ptr<float>(), nullptr);
      },
      py::arg("plan"), py::arg("payload"), py::arg("values"), no_gil);
}

rules::CountSketch shape_of_sketch(const at::Tensor& sketch, const at::Tensor& values, std::uint64_t key) {
  const bool fits = sketch.dim() == 2 && sketch.size(0) % 2 == 1 && sketch.size(0) <= 5 && sketch.size(1) > 0 &&
                    sketch.size(1) % static_cast<std::int64_t>(rules::kSketchGroup) == 0;
  if (!fits || !sketch.is_contiguous() || !values.is_contiguous() || sketch.device() != values.device()) {
    fail(ErrorCode::invalid_argument, "codec.sketch",
         "expected contiguous values and on their device a contiguous sketch of 1, 3 or 5 rows and a multiple of ",
         rules::kSketchGroup, " columns, got one of ", sketch.sizes());
  }
  return {key, static_cast<std::uint64_t>(sketch.size(0)), static_cast<std::uint64_t>(sketch.size(1))};
}

/// Binds count sketches in float32, for the benchmarks.
void bind_sketch(py::module_& m) {
  const auto no_gil = py::call_guard<py::gil_scoped_release>();
  m.def(
      "insert_sketch",
      [](at::Tensor sketch, const at::Tensor& values, std::uint64_t key) {
        const rules::CountSketch shape = shape_of_sketch(sketch, values, key);
        insert_sketch(values.device(), {values.const_data_ptr<float>()}, static_cast<std::uint64_t>(values.numel()),
                      shape, sketch.mutable_data_ptr<float>());
      },
      py::arg("sketch"), py::arg("values"), py::arg("key"), no_gil);
  m.def(
      "estimate_sketch",
      [](const at::Tensor& sketch, at::Tensor values, std::uint64_t key) {
        const rules::CountSketch shape = shape_of_sketch(sketch, values, key);
        estimate_sketch(values.device(), sketch.const_data_ptr<float>(), shape,
                        static_cast<std::uint64_t>(values.numel()), values.mutable_data_ptr<float>());
      },
      py::arg("sketch"), py::arg("values"), py::arg("key"), no_gil);
}

using ParameterTuples = std::vector<std::tuple<std::string, std::uint64_t, bool, std::uint64_t>>;

std::vector<ParameterInfo> infos_of(const ParameterTuples& parameters) {
  std::vector<ParameterInfo> infos;
  for (const auto& [name, count, exempt, rows] : parameters) infos.push_back({name, count, exempt, rows});
  return infos;
}

std::shared_ptr<Compressor> make_compressor(const BackendPtr& backend, const Plan& plan,
                                            const ParameterTuples& parameters, double deadline_s,
                                            const StatePaging& paging) {
  auto wire = std::make_unique<Wire>(backend, milliseconds(deadline_s));
  return make_without_gil<Compressor>(std::move(wire), plan, infos_of(parameters), Collective::all_reduce, nullptr,
                                      nullptr, paging);
}

/// `rows` has for each parameter the number of elements in a row. Ranks own whole rows.
std::shared_ptr<Compressor> make_shard_compressor(const BackendPtr& backend, const Plan& plan,
                                                  const ParameterTuples& parameters,
                                                  const std::vector<std::uint64_t>& rows, double deadline_s,
                                                  const StatePaging& paging) {
  auto wire = std::make_unique<Wire>(backend, milliseconds(deadline_s));
  std::vector<ParameterInfo> infos = infos_of(parameters);
  for (std::size_t i = 0; i < infos.size(); ++i) infos[i].ownership = Ownership::rows(rows[i]);
  return make_without_gil<Compressor>(std::move(wire), plan, std::move(infos), Collective::reduce_scatter, nullptr,
                                      nullptr, paging);
}

std::shared_ptr<Compressor> make_replica_compressor(const BackendPtr& replicas, const BackendPtr& shards,
                                                    const Plan& plan, const ParameterTuples& parameters,
                                                    double deadline_s, const StatePaging& paging) {
  auto wire = std::make_unique<Wire>(replicas, milliseconds(deadline_s));
  return make_without_gil<Compressor>(std::move(wire), plan, infos_of(parameters), Collective::all_reduce,
                                      std::make_unique<Wire>(shards, milliseconds(deadline_s)), nullptr, paging);
}

/// `host` connects the ranks of this rank's host, `between` those of the same number on all hosts.
std::shared_ptr<Compressor> make_host_compressor(const BackendPtr& between, const BackendPtr& host, const Plan& plan,
                                                 const ParameterTuples& parameters, double deadline_s,
                                                 const StatePaging& paging) {
  const auto wire_of = [&](const BackendPtr& ranks) { return std::make_unique<Wire>(ranks, milliseconds(deadline_s)); };
  return make_without_gil<Compressor>(wire_of(between), plan, infos_of(parameters), Collective::all_reduce, nullptr,
                                      wire_of(host), paging);
}

/// Returns the divisor of the sum over `world_size` ranks for the reduction that FSDP2 asks for.
double divisor_of(const c10d::ReduceOp& op, int world_size) {
  if (op == c10d::ReduceOp::SUM) return 1;
  if (op == c10d::ReduceOp::AVG) return world_size;
  const auto* const weight = dynamic_cast<const c10d::NCCLPreMulSumSupplement*>(op.supplement_.get());
  if (op == c10d::ReduceOp::PREMUL_SUM && weight && !weight->tensor_factor.defined()) return 1 / weight->double_factor;
  fail(
      ErrorCode::unsupported, "comm.fsdp_hook",
      "gradients can be summed, averaged, or summed with a factor that is a number; FSDP2 asks for another reduction: ",
      "call set_force_sum_reduction_for_comms(True) of the model");
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
  std::map<std::string, Compressor::Momentum> named;
  for (const auto& [name, pair] : momenta) named[name] = {pair.first, pair.second};
  compressor.set_momentum(std::move(named), beta);
}

void bind_schedule_of_zero_one(py::module_& m) {
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

void bind_compressor(py::module_& m) {
  const auto no_gil = py::call_guard<py::gil_scoped_release>();
  py::enum_<Exchange>(m, "Exchange")
      .value("planned", Exchange::planned)
      .value("gradients", Exchange::gradients)
      .value("nothing", Exchange::nothing);
  py::class_<StatePaging>(m, "StatePaging")
      .def(py::init<bool, std::string>(), py::arg("is_paged") = false, py::arg("directory") = "");
  const StatePaging unpaged;
  py::class_<Compressor, std::shared_ptr<Compressor>>(m, "Compressor")
      .def(py::init(&make_compressor), py::arg("backend"), py::arg("plan"), py::arg("parameters"),
           py::arg("deadline_s"), py::arg("paging") = unpaged)
      .def_property_readonly("plan", py::cpp_function(&Compressor::plan, no_gil))
      .def_property_readonly("rank", &Compressor::rank)
      .def_property_readonly("world_size", &Compressor::world_size)
      .def("set_plan", &Compressor::set_plan, no_gil)
      .def("set_momentum", &set_momentum, py::arg("momenta"), py::arg("beta"), no_gil)
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
      .def("set_exchange", &Compressor::set_exchange, no_gil)
      .def_property_readonly("exchange", py::cpp_function(&Compressor::exchange, no_gil))
      .def("end_step", &Compressor::end_step, no_gil)
      .def("drop_step", &Compressor::drop_step, no_gil)
      .def("scale_step", &Compressor::scale_step, py::arg("share"), no_gil)
      .def("gradient_powers", &Compressor::gradient_powers, no_gil)
      .def(
          "momentum_sample",
          [](const Compressor& compressor) {  // a copy: the hook's thread must not free what Python owns
            const Compressor::Sample sample = compressor.momentum_sample();
            return std::make_tuple(sample.parameter, sample.stride,
                                   sample.values.defined() ? sample.values.clone() : sample.values);
          },
          no_gil)
      .def("set_gradient_scale", &Compressor::set_gradient_scale, no_gil)
      .def("drop_residuals", &Compressor::drop_residuals, no_gil)
      .def("stats", &stats)
      .def("measure_next_step", &Compressor::measure_next_step, no_gil)
      .def("parameter_stats", &parameter_stats)
      .def("residuals", &Compressor::residuals, no_gil)
      .def("load_residuals", &Compressor::load_residuals, py::arg("residuals"), py::arg("of_momenta"), no_gil)
      .def("load_residuals_of", &Compressor::load_residuals_of, py::arg("world"), py::arg("of_momenta"), no_gil)
      .def(
          "run_step",  // one bucket of all parameters in their order, for benchmarks
          [](Compressor& compressor, const at::Tensor& bucket) {
            std::vector<Slot> slots;
            std::uint64_t offset = 0;
            for (const ParameterStats& parameter : compressor.parameter_stats()) {
              slots.push_back({slots.size(), offset});
              offset += parameter.count;
            }
            compressor.begin_step();
            compressor.reduce(bucket, std::move(slots));
          },
          py::arg("bucket"), no_gil)
      .def_property_readonly("residuals_are_of_momenta",
                             py::cpp_function(&Compressor::residuals_are_of_momenta, no_gil))
      .def_property("step", py::cpp_function(&Compressor::step, no_gil),
                    py::cpp_function(&Compressor::set_step, no_gil))
      .def_property("seed", py::cpp_function(&Compressor::seed, no_gil),
                    py::cpp_function(&Compressor::set_seed, no_gil))
      .def_property("usual_share", py::cpp_function(&Compressor::usual_share, no_gil),
                    py::cpp_function(&Compressor::set_usual_share, no_gil));
  m.def("shard_compressor", &make_shard_compressor, py::arg("backend"), py::arg("plan"), py::arg("parameters"),
        py::arg("rows"), py::arg("deadline_s"), py::arg("paging") = unpaged);
  m.def("replica_compressor", &make_replica_compressor, py::arg("replicas"), py::arg("shards"), py::arg("plan"),
        py::arg("parameters"), py::arg("deadline_s"), py::arg("paging") = unpaged);
  m.def("host_compressor", &make_host_compressor, py::arg("between"), py::arg("host"), py::arg("plan"),
        py::arg("parameters"), py::arg("deadline_s"), py::arg("paging") = unpaged);
  m.def("register_ddp_hook",
        [](c10d::Reducer& reducer, std::shared_ptr<Compressor> compressor, const std::vector<at::Tensor>& parameters) {
          return py::cpp_function(register_ddp_hook(reducer, std::move(compressor), parameters, torch_error_of));
        });
  m.def(
      "reach_by_shared_memory",
      [](const BackendPtr& backend, std::optional<bool> wanted, double deadline_s) {
        Reached reached = reach_by_shared_memory(backend, wanted, milliseconds(deadline_s));
        return std::pair(std::move(reached.backend), std::move(reached.why_not));
      },
      py::arg("backend"), py::arg("wanted") = py::none(), py::arg("timeout_s") = 300.0, no_gil);
  m.def(
      "room_in_shared_memory",
      [](const BackendPtr& backend, std::uint64_t bytes) {
        auto* const shared = dynamic_cast<SharedBackend*>(backend.get());
        if (shared) return shared->room(bytes);
        fail(ErrorCode::invalid_argument, "comm.shared_memory", "expected a back end of reach_by_shared_memory()");
      },
      py::arg("backend"), py::arg("bytes"));
  m.def(
      "echo_backend", [](int world_size) -> BackendPtr { return c10::make_intrusive<EchoBackend>(world_size); },
      py::arg("world_size"));
  py::class_<FsdpHook>(m, "FsdpHook")
      .def(py::init([](std::shared_ptr<Compressor> compressor,
                       const std::vector<std::vector<std::pair<std::size_t, std::uint64_t>>>& groups) {
             std::vector<std::vector<FsdpHook::Member>> all;
             for (const auto& group : groups) {
               all.emplace_back();
               for (const auto& [parameter, share] : group) all.back().push_back({parameter, share});
             }
             return std::make_unique<FsdpHook>(std::move(compressor), std::move(all));
           }),
           py::arg("compressor"), py::arg("groups"))
      .def("begin_pass", &FsdpHook::begin_pass, no_gil)
      .def("mark", &FsdpHook::mark, no_gil)
      .def(
          "reduce_scatter",
          [](FsdpHook& hook, std::size_t group, at::Tensor output, at::Tensor input, const c10d::ReduceOp& op,
             int world_size) {
            const double divisor = divisor_of(op, world_size);
            const py::gil_scoped_release released;
            hook.reduce_scatter(group, std::move(output), std::move(input), divisor);
          },
          py::arg("group"), py::arg("output"), py::arg("input"), py::arg("op"), py::arg("world_size"))
      .def("all_reduce", &FsdpHook::all_reduce, no_gil);
  m.def("rows_of", [](const std::vector<std::int64_t>& sizes) { return rows_of(sizes); });
  m.def("require_kernels", [](const at::Tensor& tensor) { kernels_for(tensor.device()); });
  m.def(
      "all_reduce",
      [](at::Tensor tensor, const Plan& plan, const BackendPtr& backend, bool average, double deadline_s,
         std::uint64_t call, std::uint64_t seed) {
        const ReduceOp op = average ? ReduceOp::average : ReduceOp::sum;
        all_reduce(tensor, plan, backend, op, milliseconds(deadline_s), call, seed);
      },
      no_gil);
}

}  // namespace

void bind_comm(py::module_& m) {
  bind_plan(m);
  bind_coding(m);
  bind_sketch(m);
  bind_schedule_of_zero_one(m);
  bind_compressor(m);
}

}  // namespace octavo
