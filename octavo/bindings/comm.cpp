// SPDX-License-Identifier: Apache-2.0
// octavo._C: how gradients come to a Compressor, and what ranks exchange without one.
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/reducer.hpp>
#include <torch/csrc/utils/pybind.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "octavo/bindings/bind.h"
#include "octavo/bindings/durations.h"
#include "octavo/bindings/echo_backend.h"
#include "octavo/bindings/errors.h"
#include "octavo/bindings/without_gil.h"
#include "octavo/comm/all_reduce.h"
#include "octavo/comm/compressor.h"
#include "octavo/comm/ddp_hook.h"
#include "octavo/comm/fsdp_hook.h"
#include "octavo/comm/plan.h"
#include "octavo/comm/serial_queue.h"
#include "octavo/comm/shared/shared_backend.h"
#include "octavo/comm/small_collectives.h"
#include "octavo/comm/wire.h"
#include "octavo/device/dispatch.h"
#include "octavo/kernels/error.h"

namespace py = pybind11;

namespace octavo {

namespace {

using BackendPtr = c10::intrusive_ptr<c10d::Backend>;

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

void bind_hooks(py::module_& m) {
  const auto no_gil = py::call_guard<py::gil_scoped_release>();
  m.def("register_ddp_hook",
        [](c10d::Reducer& reducer, std::shared_ptr<Compressor> compressor, const std::vector<at::Tensor>& parameters) {
          std::shared_ptr<SerialQueue> queue = make_without_gil<SerialQueue>();  // Python frees the reducer
          return py::cpp_function(
              register_ddp_hook(reducer, std::move(compressor), parameters, torch_error_of, std::move(queue)));
        });
  py::class_<FsdpHook>(m, "FsdpHook")
      .def(py::init([](std::shared_ptr<Compressor> compressor,
                       const std::vector<std::vector<std::pair<std::size_t, std::uint64_t>>>& groups) {
             std::vector<std::vector<FsdpHook::Member>> all;
             for (const auto& group : groups) {
               all.emplace_back();
               for (const auto& [parameter, shard_size] : group) all.back().push_back({parameter, shard_size});
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
}

void bind_shared_memory(py::module_& m) {
  m.def(
      "reach_by_shared_memory",
      [](const BackendPtr& backend, std::optional<bool> wanted, double timeout_s) {
        Reached reached = reach_by_shared_memory(backend, wanted, milliseconds(timeout_s));
        return std::pair(std::move(reached.backend), std::move(reached.why_not));
      },
      py::arg("backend"), py::arg("wanted") = py::none(), py::arg("timeout_s") = 300.0,
      py::call_guard<py::gil_scoped_release>());
  m.def(
      "room_in_shared_memory",
      [](const BackendPtr& backend, std::uint64_t bytes) {
        auto* const shared = dynamic_cast<SharedBackend*>(backend.get());
        if (shared) return shared->room(bytes);
        fail(ErrorCode::invalid_argument, "comm.shared_memory", "expected a back end of reach_by_shared_memory()");
      },
      py::arg("backend"), py::arg("bytes"), py::call_guard<py::gil_scoped_release>());
}

void bind_wire(py::module_& m) {
  const auto no_gil = py::call_guard<py::gil_scoped_release>();
  py::class_<Wire, WithoutGilPtr<Wire>>(m, "Wire")
      .def(py::init([](BackendPtr backend, double timeout_s) {
             return make_without_gil<Wire>(std::move(backend), milliseconds(timeout_s));
           }),
           py::arg("backend"), py::arg("timeout_s"))
      .def(
          "all_reduce", [](Wire& wire, at::Tensor tensor) { wire.all_reduce(tensor); }, no_gil, py::arg("tensor"))
      .def(
          "all_gather",
          [](Wire& wire, const at::Tensor& own, const std::vector<std::uint64_t>& bytes, const std::string& of,
             const std::string& where) { return all_gather(wire, own, bytes, of, where); },
          no_gil, py::arg("own"), py::arg("bytes"), py::arg("of"), py::arg("where"));
}

void bind_all_reduce(py::module_& m) {
  m.def("rows_of", [](const std::vector<std::int64_t>& sizes) { return rows_of(sizes); });
  m.def("ring_bytes", &ring_bytes, py::arg("payload_bytes"), py::arg("ranks"));
  m.def(
      "all_reduce",
      [](at::Tensor tensor, const Plan& plan, const BackendPtr& backend, bool average, double timeout_s,
         std::uint64_t call, std::uint64_t seed) {
        const ReduceOp op = average ? ReduceOp::average : ReduceOp::sum;
        all_reduce(tensor, plan, backend, op, milliseconds(timeout_s), call, seed);
      },
      py::call_guard<py::gil_scoped_release>());
  m.def("require_kernels", [](const at::Tensor& tensor) { kernels_for(tensor.device()); });
  m.def(
      "echo_backend", [](int world_size) -> BackendPtr { return c10::make_intrusive<EchoBackend>(world_size); },
      py::arg("world_size"));
}

}  // namespace

void bind_comm(py::module_& m) {
  bind_hooks(m);
  bind_shared_memory(m);
  bind_wire(m);
  bind_all_reduce(m);
}

}  // namespace octavo
