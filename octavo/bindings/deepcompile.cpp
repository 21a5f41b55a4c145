// SPDX-License-Identifier: Apache-2.0
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/utils/pybind.h>

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "octavo/bindings/bind.h"
#include "octavo/bindings/durations.h"
#include "octavo/bindings/without_gil.h"
#include "octavo/comm/schedule/gather_shards.h"
#include "octavo/deepcompile/engine.h"
#include "octavo/deepcompile/memory_access.h"
#include "octavo/deepcompile/parameter.h"
#include "octavo/kernels/error.h"

namespace py = pybind11;

namespace octavo {

namespace {

using BackendPtr = c10::intrusive_ptr<c10d::Backend>;

/// Returns the codec of a plan that is a codec and nothing else; null where values are sent as they are.
CodecPtr codec_of_gather(const Plan& plan) {
  if (plan.dense()) return nullptr;
  if (plan.text() != plan.general.codec->text()) {
    fail(ErrorCode::invalid_argument, "zero.initialize", "parameters are gathered only by a codec, such as int8, bf16 ",
         "or fp8, the same for all of them, got ", plan.text());
  }
  GatherShards::require_fit(*plan.general.codec);
  return plan.general.codec;
}

/// Makes an engine on a connection of its own, whose ranks are those of the engine. `gather` is a plan whose codec
/// sends parameters. `gradient_backend` is another connection, as in EngineOptions.
WithoutGilPtr<dc::Engine> make_engine(const BackendPtr& backend, std::int64_t bucket_elements, const Plan& plan,
                                      const std::optional<Plan>& gather, double timeout_s,
                                      std::optional<bool> symmetric_memory,
                                      const std::optional<BackendPtr>& gradient_backend, const StatePaging& paging,
                                      std::uint64_t seed) {
  auto group = c10::make_intrusive<c10d::ProcessGroup>(backend->getRank(), backend->getSize());
  dc::EngineOptions options;
  options.plan = plan;
  if (gather) options.gather_codec = codec_of_gather(*gather);
  options.timeout = milliseconds(timeout_s);
  options.symmetric_memory = symmetric_memory;
  options.paging = paging;
  options.seed = seed;
  options.gradient_backend = gradient_backend.value_or(BackendPtr());
  return make_without_gil<dc::Engine>(std::move(group), backend, bucket_elements, std::move(options));
}

void bind_flags(py::module_& m) {
  using dc::Flags;
  py::class_<Flags, std::shared_ptr<Flags>>(m, "Flags")
      .def_readwrite("profile", &Flags::profile)
      .def_readwrite("pre_div_reduce", &Flags::pre_div_reduce)
      .def_readwrite("free_activation_threshold", &Flags::free_activation_threshold)
      .def_readwrite("sync_before_reduce", &Flags::sync_before_reduce)
      .def_readwrite("sync_after_reduce", &Flags::sync_after_reduce)
      .def_readwrite("sync_before_allgather", &Flags::sync_before_allgather)
      .def_readwrite("sync_after_allgather", &Flags::sync_after_allgather)
      .def_readwrite("offload_activation_pin_memory", &Flags::offload_activation_pin_memory);
}

using EngineClass = py::class_<dc::Engine, WithoutGilPtr<dc::Engine>>;

/// What is registered, and what is known from the first graph on.
void def_graphs(EngineClass& engine) {
  using dc::Engine;
  using Shape = std::vector<std::int64_t>;
  const auto no_gil = py::call_guard<py::gil_scoped_release>();
  engine
      .def(
          "owned",
          [](const Engine& engine, std::uint64_t count) {
            const Range own = engine.owned(count);
            return std::pair(own.first, own.count);
          },
          py::arg("count"))
      .def(
          "register_param",
          [](Engine& engine, long id, const Shape& shape, at::Tensor values, at::Tensor buffer, std::int64_t offset,
             std::string name, bool exempt, const std::optional<at::Tensor>& own_part) {
            engine.register_param(id, shape, std::move(values), std::move(buffer), offset,
                                  {std::move(name), exempt, own_part.value_or(at::Tensor())});
          },
          py::arg("ds_id"), py::arg("ds_shape"), py::arg("ds_tensor"), py::arg("grad_buffer"), py::arg("offset"),
          py::arg("name"), py::arg("exempt"), py::arg("own_part") = py::none())
      .def(
          "register_z3_param",
          [](Engine& engine, long id, const Shape& shape, at::Tensor shard, at::Tensor buffer, bool persistent,
             std::string name, bool exempt) {
            engine.register_z3_param(id, shape, std::move(shard), std::move(buffer), persistent,
                                     {std::move(name), exempt});
          },
          py::arg("ds_id"), py::arg("ds_shape"), py::arg("ds_tensor"), py::arg("grad_buffer"), py::arg("persistent"),
          py::arg("name"), py::arg("exempt"))
      .def("update_param_grad_buffer", &Engine::update_param_grad_buffer, py::arg("ds_id"), py::arg("grad_buffer"))
      .def("new_graph_id", &Engine::new_graph_id)
      .def("register_graph_z1", &Engine::register_graph_z1, py::arg("graph_id"), py::arg("ds_ids"), no_gil)
      .def("register_graph_z2", &Engine::register_graph_z2, py::arg("graph_id"), py::arg("ds_ids"), no_gil)
      .def("register_graph_z3", &Engine::register_graph_z3, py::arg("graph_id"), py::arg("ds_ids"), no_gil)
      .def("order_gradients", &Engine::order_gradients, py::arg("graph_id"), py::arg("expected"), py::arg("learns"),
           no_gil)
      .def("unregister_graph", &Engine::unregister_graph, py::arg("graph_id"))
      .def("reset", &Engine::reset, no_gil)
      .def_property_readonly("flags", [](const Engine& engine) { return engine.flags; })
      .def("why_no_symmetric_memory", &Engine::why_no_symmetric_memory);
}

/// The passes of a step, and where their gradients are.
void def_gradients(EngineClass& engine) {
  using dc::Engine;
  const auto no_gil = py::call_guard<py::gil_scoped_release>();
  engine.def("start_forward", &Engine::start_forward)
      .def("end_forward", &Engine::end_forward)
      .def("start_backward", &Engine::start_backward, py::arg("update"), no_gil)
      .def("take_grad", &Engine::take_grad, py::arg("grad"), py::arg("graph_id"), py::arg("ds_id"), no_gil)
      .def("skip_gradients", &Engine::skip_gradients, py::arg("graph_id"), py::arg("ds_ids"), no_gil)
      .def("end_backward", &Engine::end_backward, py::arg("graph_id"), py::arg("release_reduce_buckets") = false,
           no_gil)
      .def("give_up_pass", &Engine::give_up_pass, no_gil)
      .def("drop_gradients", &Engine::drop_gradients, no_gil)
      .def("ignore_gradients", &Engine::ignore_gradients, py::arg("ignores"))
      .def("ignores_gradients", &Engine::ignores_gradients)
      .def("reduced_params", &Engine::reduced_params)
      .def_property_readonly("compressor", &Engine::compressor, py::return_value_policy::reference_internal)
      .def("sent_bytes", &Engine::sent_bytes, no_gil);
}

/// Where parameters and states are.
void def_values(EngineClass& engine) {
  using dc::Engine;
  const auto no_gil = py::call_guard<py::gil_scoped_release>();
  engine.def("gather_into", &Engine::gather_into, py::arg("graph_id"), py::arg("ds_ids"), py::arg("wholes"), no_gil)
      .def(
          "wait_allgather",
          [](Engine& engine, long graph_id, long id) {
            engine.wait_allgather(engine.allgather_param(graph_id, id), graph_id, id);
          },
          py::arg("graph_id"), py::arg("ds_id"), no_gil)
      .def("has_valid_values", &Engine::has_valid_values, py::arg("ds_id"))
      .def("give_back", &Engine::give_back, py::arg("ds_id"))
      .def("set_persistent", &Engine::set_persistent, py::arg("ds_id"), py::arg("is_persistent") = true, no_gil)
      .def("gather_updated", &Engine::gather_updated, no_gil)
      .def("invalidate_gathered_param", &Engine::invalidate_gathered_param, py::arg("ds_id"), no_gil)
      .def("invalidate_gathered_params", &Engine::invalidate_gathered_params)
      .def("clear_all_gathered_params", &Engine::clear_all_gathered_params, no_gil)
      .def("set_states", &Engine::set_states, py::arg("ds_id"), py::arg("states"))
      .def("restore", &Engine::restore, no_gil)
      .def("offloaded_bytes", &Engine::offloaded_bytes);
}

void bind_engine(py::module_& m) {
  EngineClass engine(m, "Engine");
  engine.def(py::init(&make_engine), py::arg("backend"), py::arg("bucket_elements"), py::arg("plan"),
             py::arg("gather") = py::none(), py::arg("timeout_s") = 300.0, py::arg("symmetric_memory") = py::none(),
             py::arg("gradient_backend") = py::none(), py::arg("paging") = StatePaging(), py::arg("seed") = 0);
  def_graphs(engine);
  def_gradients(engine);
  def_values(engine);
}

}  // namespace

void bind_deepcompile(py::module_& m) {
  bind_flags(m);
  bind_engine(m);
  m.def("require_gather", [](const Plan& plan) { codec_of_gather(plan); }, py::arg("plan"));
  m.def("forbid_access", &dc::forbid_access, py::arg("tensor"), py::arg("message"));
  m.def("allow_access", &dc::allow_access, py::arg("tensor"));
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
