// SPDX-License-Identifier: Apache-2.0
// octavo._C: plans, and single tensors through their codecs.
#include <torch/csrc/utils/pybind.h>

#include <optional>
#include <string>

#include "octavo/bindings/bind.h"
#include "octavo/codec/count_sketch.h"
#include "octavo/comm/plan.h"
#include "octavo/kernels/error.h"

namespace py = pybind11;

namespace octavo {

namespace {

const Codec& codec_of(const Plan& plan) {
  if (!plan.general.map) return *plan.general.codec;
  fail(ErrorCode::unsupported, "codec.codec_of", "the plan ", plan.text(),
       " maps whole tensors, by their shape, in several rounds: it has no payload; octavo.all_reduce runs it");
}

constexpr const char* kPlanDocs =
    R"doc(How values are sent: the codec, its error feedback, and rules for some parameters.

Plan(text) parses a text such as "int4+ef", "topk:0.01+ef+warmup:200" or "int4+ef;*embed*=dense"; docs/gradients.md lists
all plans. Raises ValueError, which says what would work, for a text that is none. Plans are immutable, are equal where
their texts are, can be pickled, and may be used from any thread. Properties are those of the plan of all parameters that
no rule fits; of() returns the plan of a parameter.)doc";

/// Returns the plan of a parameter as one without rules.
Plan plan_of(const Plan& plan, const std::string& parameter) {
  Plan own;
  own.general = plan.of(parameter);
  return own;
}

py::list rules_of(const Plan& plan) {
  py::list rules;
  for (const Plan::Rule& rule : plan.rules) rules.append(py::make_tuple(rule.pattern, rule.plan.text()));
  return rules;
}

void bind_plan(py::module_& m) {
  py::class_<Plan>(m, "Plan", kPlanDocs)
      .def(py::init(&Plan::parse), py::arg("text"))
      .def(py::init([](const Plan& plan) { return plan; }), py::arg("plan"))
      .def(py::pickle([](const Plan& plan) { return plan.text(); },
                      [](const std::string& text) { return Plan::parse(text); }))
      .def_property_readonly(
          "codec",
          [](const Plan& plan) { return plan.general.map ? plan.general.map->text() : plan.general.codec->text(); },
          "The codec, without feedback: what ranks send to the owners of a range, and owners to all.")
      .def_property_readonly(
          "down",
          [](const Plan& plan) {
            return plan.general.down ? std::optional(plan.general.down->text()) : std::optional<std::string>();
          },
          "The codec of what owners send to all, where it is another one (+down); otherwise None.")
      .def_property_readonly(
          "rules", &rules_of,
          "A list of (pattern, plan): the parameters whose names a pattern fits are sent by that plan.")
      .def("of", &plan_of, py::arg("parameter"), "Returns the plan of the parameter of this name.")
      .def_property_readonly(
          "warmup_steps", [](const Plan& plan) { return plan.general.warm_up ? plan.general.warm_up->steps : 0; },
          "The first steps of a run, in which more is sent (+warmup); 0 where there are none.")
      .def_property_readonly(
          "error_feedback", [](const Plan& plan) { return plan.general.feedback != nullptr; },
          "Whether what a message leaves out is added to a later one.")
      .def_property_readonly(
          "momentum", [](const Plan& plan) { return plan.momentum(); },
          "The momentum that the plan keeps in the optimizer's place (dgc, fetchsgd); None where it keeps none.")
      .def("with_momentum", &Plan::with_momentum, py::arg("momentum"),
           "Returns the plan with another momentum for all parameters, where it keeps one.")
      .def("averaged_over_hits", &Plan::averaged_over_hits,
           "Returns the plan with +hits for all parameters that take it. Raises ValueError where none does.")
      .def("with_decay", &Plan::with_decay, py::arg("decay"),
           "Returns the plan with another decay for all parameters that have +ef. Raises ValueError where none has it, "
           "and for a decay that is not above 0 and at most 1.")
      .def_property_readonly("votes", &Plan::votes,
                             "Whether a parameter's sums keep only signs (sign-vote), for optimizers of signs.")
      .def_property_readonly(
          "leaves_unsent", [](const Plan& plan) { return plan.general.codec->traits().leaves_unsent; },
          "Whether most values are not sent in a step (topk, threshold, randomk).")
      .def_property_readonly(
          "is_auto", [](const Plan& plan) { return plan.general.choices != nullptr; },
          "Whether a codec is chosen for each bucket by measurement.")
      .def("for_momentum", &Plan::for_momentum,
           "Returns the plan for averaging momenta under a frozen variance: signs then have one scale per tensor.")
      .def("require_rules_fit", &Plan::require_rules_fit, py::arg("parameters"),
           "Raises ValueError where a rule fits none of these names.")
      .def(
          "payload_bytes", [](const Plan& plan, std::uint64_t count) { return codec_of(plan).payload_bytes(count); },
          py::arg("count"), "Returns the bytes of a message of `count` values, or the most that they may be.")
      .def("__str__", &Plan::text)
      .def(
          "__eq__", [](const Plan& a, const Plan& b) { return a.text() == b.text(); }, py::is_operator())
      .def("__hash__", [](const Plan& plan) { return py::hash(py::str(plan.text())); })
      .def("__repr__", [](const Plan& plan) { return "Plan('" + plan.text() + "')"; });
}

PayloadPart payload_of(const Codec& codec, const at::Tensor& values, const at::Tensor& payload) {
  const auto count = static_cast<std::uint64_t>(values.numel());
  const auto bytes = codec.payload_bytes(count);
  if (static_cast<std::uint64_t>(payload.numel()) < bytes || !values.is_contiguous() || !payload.is_contiguous() ||
      payload.device() != values.device()) {
    fail(ErrorCode::invalid_argument, "codec.payload_of",
         "expected contiguous values and on their device a contiguous payload ", "of at least ", bytes, " bytes, got ",
         values.is_contiguous() ? "contiguous" : "strided", " values on ", values.device().str(), " and a ",
         payload.is_contiguous() ? "contiguous" : "strided", " payload of ", payload.numel(), " on ",
         payload.device().str());
  }
  return {payload.mutable_data_ptr<std::uint8_t>(), count, {0, count}};
}

void require_bytes(const at::Tensor& bytes, std::int64_t least) {
  if (bytes.is_cpu() && bytes.scalar_type() == at::kByte && bytes.is_contiguous() && bytes.numel() >= least) return;
  fail(ErrorCode::invalid_argument, "codec.require_bytes",
       "expected a contiguous uint8 tensor of the CPU with at least ", least, " bytes, got ", bytes.numel(), " of ",
       toString(bytes.scalar_type()), " on ", bytes.device().str());
}

rules::Residual* residual_of(const std::optional<at::Tensor>& tensor, const at::Tensor& values) {
  if (!tensor) return nullptr;
  if (tensor->numel() != values.numel() || !tensor->is_contiguous() || tensor->device() != values.device()) {
    fail(ErrorCode::invalid_argument, "codec.residual_of", "expected contiguous residuals of ", values.numel(),
         " values on ", values.device().str(), ", got ", tensor->numel(), " on ", tensor->device().str());
  }
  return reinterpret_cast<rules::Residual*>(tensor->mutable_data_ptr<at::BFloat16>());
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
        codec.encode(values.device(), {values.const_data_ptr<float>(), residual_of(residual, values)},
                     payload_of(codec, values, payload), residual_of(next_residual, values));
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
          fail(ErrorCode::invalid_argument, "codec.unpack", "these ", packed.nbytes(),
               " bytes are no packed payload of ", count, " values of ", plan.text());
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

}  // namespace

void bind_codecs(py::module_& m) {
  bind_plan(m);
  bind_coding(m);
  bind_sketch(m);
}

}  // namespace octavo
