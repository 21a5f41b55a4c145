// SPDX-License-Identifier: Apache-2.0
// octavo._C: what is not an operator. Python gives names and objects; nothing is computed here.
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/reducer.hpp>
#include <torch/csrc/utils/pybind.h>

#include <memory>

#include "octavo/bindings/accelerator.h"
#include "octavo/bindings/sycl.h"
#include "octavo/codec/coding.h"
#include "octavo/comm/all_reduce.h"
#include "octavo/comm/compressor.h"
#include "octavo/comm/ddp_hook.h"
#include "octavo/comm/plan.h"
#include "octavo/kernels/backend.h"
#include "octavo/kernels/error.h"

namespace py = pybind11;

namespace octavo {

namespace {

using ProcessGroupPtr = c10::intrusive_ptr<c10d::ProcessGroup>;

PyObject* python_class(ErrorCode code) {
  switch (code) {
    case ErrorCode::invalid_argument: return PyExc_ValueError;
    case ErrorCode::wrong_type: return PyExc_TypeError;
    case ErrorCode::unsupported: return PyExc_NotImplementedError;
    case ErrorCode::timeout: return PyExc_TimeoutError;
    case ErrorCode::out_of_memory: return PyExc_MemoryError;
    default: return PyExc_RuntimeError;
  }
}

void bind_errors() {
  py::register_exception_translator([](std::exception_ptr thrown) {
    try {
      if (thrown) std::rethrow_exception(thrown);
    } catch (const Error& error) {
      PyErr_SetString(python_class(error.code()), error.what());
    }
  });
}

void bind_backends(py::module_& m) {
  m.def("isa", [] { return std::string(cpu_isa()); });
  m.def("backends", [] {
    py::list all;
    for (const BackendStatus& status : backends()) {
      py::dict entry;
      entry["name"] = status.name;
      entry["available"] = status.available;
      entry["reason"] = status.reason;
      all.append(entry);
    }
    return all;
  });
}

void bind_plan(py::module_& m) {
  py::class_<Plan>(m, "Plan")
      .def(py::init(&Plan::parse), py::arg("text"))
      .def_property_readonly("codec", [](const Plan& plan) { return traits(plan.codec).name; })
      .def_readonly("block", &Plan::block)
      .def_readonly("error_feedback", &Plan::error_feedback)
      .def_property_readonly("is_dense", &Plan::dense)
      .def_property_readonly("votes", &Plan::votes)
      .def("for_momentum", &Plan::for_momentum)
      .def("payload_bytes", [](const Plan& plan, std::uint64_t count) { return plan.up().payload_bytes(count); })
      .def("__str__", &Plan::text)
      .def("__eq__", [](const Plan& a, const Plan& b) { return a.text() == b.text(); })
      .def("__hash__", [](const Plan& plan) { return py::hash(py::str(plan.text())); })
      .def("__repr__", [](const Plan& plan) { return "Plan('" + plan.text() + "')"; });
}

Payload payload_of(const Plan& plan, const at::Tensor& values, const at::Tensor& payload) {
  const auto count = static_cast<std::uint64_t>(values.numel());
  const auto bytes = plan.up().payload_bytes(count);
  if (static_cast<std::uint64_t>(payload.numel()) < bytes || !values.is_contiguous() || !payload.is_contiguous()) {
    fail(ErrorCode::invalid_argument, "codec", "expected a contiguous payload of ", bytes, " bytes, got ",
         payload.numel());
  }
  return plan.up().payload(payload.mutable_data_ptr<std::uint8_t>(), count);
}

rules::Residual* residual_of(const std::optional<at::Tensor>& tensor) {
  return tensor ? reinterpret_cast<rules::Residual*>(tensor->mutable_data_ptr<at::BFloat16>()) : nullptr;
}

/// One tensor's way through a codec, for the benchmarks: contiguous values in float32 and residuals in bfloat16 on CPU,
/// and a payload of payload_bytes().
void bind_coding(py::module_& m) {
  const auto no_gil = py::call_guard<py::gil_scoped_release>();
  m.def(
      "encode",
      [](const Plan& plan, const at::Tensor& values, at::Tensor payload, const std::optional<at::Tensor>& residual,
         const std::optional<at::Tensor>& next_residual) {
        encode(values.device(), plan.up(), {values.const_data_ptr<float>(), residual_of(residual)},
               static_cast<std::uint64_t>(values.numel()), payload_of(plan, values, payload),
               residual_of(next_residual));
      },
      py::arg("plan"), py::arg("values"), py::arg("payload"), py::arg("residual") = py::none(),
      py::arg("next_residual") = py::none(), no_gil);
  m.def(
      "decode",
      [](const Plan& plan, const at::Tensor& payload, at::Tensor values) {
        decode(values.device(), plan.up(), payload_of(plan, values, payload),
               static_cast<std::uint64_t>(values.numel()), Store::stream, values.mutable_data_ptr<float>());
      },
      no_gil);
}

std::chrono::milliseconds milliseconds(double seconds) {
  return std::chrono::milliseconds(static_cast<std::int64_t>(seconds * 1000));
}

std::shared_ptr<Compressor> make_compressor(const ProcessGroupPtr& group, const Plan& plan,
                                            const std::vector<std::tuple<std::string, std::uint64_t, bool>>& parameters,
                                            double deadline_s) {
  std::vector<ParameterInfo> infos;
  for (const auto& [name, count, exempt] : parameters) infos.push_back({name, count, exempt});
  auto wire = std::make_unique<Wire>(group->getBackend(c10::kCPU), milliseconds(deadline_s));
  return std::make_shared<Compressor>(std::move(wire), plan, std::move(infos));
}

py::dict stats(const Compressor& compressor) {
  const CompressorStats stats = [&] {  // it may wait for a step under way, and Python must not wait with it
    const py::gil_scoped_release no_gil;
    return compressor.stats();
  }();
  py::dict result;
  result["wire_bytes"] = stats.wire_bytes;
  result["dense_bytes"] = stats.dense_bytes;
  result["steps"] = stats.steps;
  result["nonfinite_steps"] = stats.nonfinite_steps;
  result["encode_s"] = stats.seconds.encode;
  result["wait_up_s"] = stats.seconds.wait_up;
  result["reduce_s"] = stats.seconds.reduce;
  result["wait_down_s"] = stats.seconds.wait_down;
  result["decode_s"] = stats.seconds.decode;
  return result;
}

void set_momentum(Compressor& compressor, const std::map<std::string, std::pair<at::Tensor, at::Tensor>>& momenta,
                  double beta) {
  std::map<std::string, Compressor::Momentum> named;
  for (const auto& [name, pair] : momenta) named[name] = {pair.first, pair.second};
  compressor.set_momentum(std::move(named), beta);
}

void bind_compressor(py::module_& m) {
  const auto no_gil = py::call_guard<py::gil_scoped_release>();
  py::class_<Compressor, std::shared_ptr<Compressor>>(m, "Compressor")
      .def(py::init(&make_compressor), py::arg("group"), py::arg("plan"), py::arg("parameters"), py::arg("deadline_s"))
      .def_property_readonly("plan", py::cpp_function(&Compressor::plan, no_gil))
      .def_property_readonly("rank", &Compressor::rank)
      .def_property_readonly("world_size", &Compressor::world_size)
      .def("set_plan", &Compressor::set_plan, no_gil)
      .def("set_momentum", &set_momentum, py::arg("momenta"), py::arg("beta"), no_gil)
      .def("gradient_powers", &Compressor::gradient_powers, no_gil)
      .def("drop_residuals", &Compressor::drop_residuals, no_gil)
      .def("stats", &stats)
      .def("residuals", &Compressor::residuals, no_gil)
      .def("load_residuals", &Compressor::load_residuals, no_gil);
  m.def("register_ddp_hook", &register_ddp_hook);
  m.def(
      "all_reduce",
      [](at::Tensor tensor, const Plan& plan, const ProcessGroupPtr& group, bool average, double deadline_s) {
        all_reduce(tensor, plan, group, average ? ReduceOp::average : ReduceOp::sum, milliseconds(deadline_s));
      },
      no_gil);
}

}  // namespace

}  // namespace octavo

PYBIND11_MODULE(_C, m) {
  octavo::bind_errors();
  octavo::bind_backends(m);
  octavo::bind_plan(m);
  octavo::bind_coding(m);
  octavo::bind_compressor(m);
  octavo::bind_accelerator(m);
  octavo::bind_sycl(m);
}
