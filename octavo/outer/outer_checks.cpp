// SPDX-License-Identifier: Apache-2.0
// Outer: the checks of its arguments.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "octavo/device/dispatch.h"
#include "octavo/kernels/error.h"
#include "octavo/outer/outer.h"

namespace octavo {

namespace {

void require_options(const OuterOptions& options) {
  const auto refuse = [](auto... why) { fail(ErrorCode::invalid_argument, kOuterWhere, why...); };
  if (options.every == 0) refuse("every must be at least 1 step");
  if (options.delay >= options.every) {
    refuse("a round must arrive before the next one is sent: delay must be below every, got ", options.delay, " of ",
           options.every);
  }
  if (options.fragments == 0 || options.fragments > options.every) {
    refuse("fragments must be between 1 and every, ", options.every, ", got ", options.fragments);
  }
  if (!(options.lr > 0 && std::isfinite(options.lr))) refuse("lr must be above 0 and finite, got ", options.lr);
  if (!(options.momentum >= 0 && options.momentum < 1)) refuse("momentum must be in [0, 1), got ", options.momentum);
  if (!(options.mix >= 0 && options.mix < 1)) refuse("mix must be in [0, 1), got ", options.mix);
  if (options.spread && options.mix > 0) {
    refuse(
        "what a rank keeps of its own values, mix, has its part of a spread momentum in it, which would count twice: ",
        "use mix=0 or spread=False");
  }
}

void require_parameters(const std::vector<OuterParameter>& parameters) {
  if (parameters.empty())
    fail(ErrorCode::invalid_argument, kOuterWhere, "the model has no parameters that are trained");
  for (const OuterParameter& parameter : parameters) {
    if (parameter.tensor.defined()) continue;
    fail(ErrorCode::invalid_argument, kOuterWhere, "expected a tensor for ", parameter.name, ", got an undefined one");
  }
  const c10::Device device = parameters[0].tensor.device();
  kernels_for(device);
  std::set<std::string_view> names;
  for (const auto& [name, tensor, exempt, layout] : parameters) {
    if (!at::isFloatingType(tensor.scalar_type()) || !tensor.is_non_overlapping_and_dense()) {
      fail(ErrorCode::invalid_argument, kOuterWhere, name, " is ", toString(tensor.scalar_type()), " with strides ",
           tensor.strides(), ": parameters must be real floating numbers in dense memory",
           tensor.is_complex() ? "; keep a complex one as a real one of twice the size (torch.view_as_complex)" : "");
    }
    if (!names.insert(name).second) {
      fail(ErrorCode::invalid_argument, kOuterWhere, "two parameters have the name ", name,
           ": states are kept by name");
    }
    if (tensor.device() == device) continue;
    fail(ErrorCode::unsupported, kOuterWhere, "all parameters must be on one device: ", name, " is on ",
         tensor.device().str(), ", ", parameters[0].name, " on ", device.str());
  }
}

/// Throws where two parameters lie in one memory, in which each would be moved by itself.
void require_own_memory(const std::vector<OuterParameter>& parameters) {
  struct Span {
    std::uintptr_t begin, end;
    std::string_view name;
  };
  std::vector<Span> spans;
  for (const OuterParameter& parameter : parameters) {
    const auto begin = reinterpret_cast<std::uintptr_t>(parameter.tensor.const_data_ptr());
    if (parameter.tensor.numel() > 0) spans.push_back({begin, begin + parameter.tensor.nbytes(), parameter.name});
  }
  std::ranges::sort(spans, {}, &Span::begin);
  const auto share = std::ranges::adjacent_find(spans, [](const Span& a, const Span& b) { return b.begin < a.end; });
  if (share == spans.end()) return;
  fail(ErrorCode::invalid_argument, kOuterWhere, share->name, " and ", std::next(share)->name,
       " share memory, and each ",
       "would be moved by itself: make them one parameter, by assigning the one module's parameter to the other");
}

}  // namespace

void Outer::require_plan(const Plan& plan, double mix) {
  const auto refuse = [&](auto... why) {
    fail(ErrorCode::invalid_argument, kOuterWhere, "the plan ", plan.text(), " ", why...);
  };
  if (plan.general.choices) refuse("measures the exchanges of every step: name the plan of rounds, such as sign+ef");
  if (plan.votes()) refuse("keeps no magnitudes, and rounds need them: use sign+ef");
  if (plan.momentum()) refuse("has a momentum of its own beside the outer one: use one without, such as topk:0.01+ef");
  const auto owes_twice = [](const ParameterPlan& one) {
    if (!one.feedback) return false;
    const bool drops_sums = (one.down ? *one.down : *one.codec).traits().leaves_unsent;  // owners then owe, too
    return one.map || !one.feedback->knows_owed_share() || drops_sums;
  };
  const bool any =
      std::any_of(plan.rules.begin(), plan.rules.end(), [&](const Plan::Rule& rule) { return owes_twice(rule.plan); });
  if (mix > 0 && (any || owes_twice(plan.general))) {
    refuse(
        "owes what it could not send, and what a rank keeps of its own values, mix, is part of its next difference: ",
        "both would be sent. Use mix=0, or error feedback of values whose sums are sent whole, such as sign+ef or ",
        "topk:64/4096:sign+down:int8+ef");
  }
}

void Outer::require(const Plan& plan, const std::vector<OuterParameter>& parameters, const OuterOptions& options) {
  require_options(options);
  require_parameters(parameters);
  require_own_memory(parameters);
  require_plan(plan, options.mix);
  std::vector<std::string> compressed;
  for (const OuterParameter& parameter : parameters) {
    if (!parameter.exempt) compressed.push_back(parameter.name);
  }
  plan.require_rules_fit(compressed);
  cut_into_fragments(parameters, options.fragments);
}

}  // namespace octavo
