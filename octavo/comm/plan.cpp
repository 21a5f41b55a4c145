// SPDX-License-Identifier: Apache-2.0
#include "octavo/comm/plan.h"

#include <algorithm>
#include <fnmatch.h>

#include "octavo/codec/codec_text.h"
#include "octavo/comm/text_pieces.h"
#include "octavo/kernels/error.h"

namespace octavo {

bool Plan::Rule::fits(const std::string& parameter) const {
  return fnmatch(pattern.c_str(), parameter.c_str(), 0) == 0;
}

Plan Plan::parse(std::string_view text) {
  const auto [all, rest] = split(text, ';');
  Plan plan;
  plan.general = ParameterPlan::parse(text, all);
  for_each_piece(rest, ';', [&](std::string_view rule) {
    const std::size_t equals = rule.find('=');
    if (equals == 0 || equals == std::string_view::npos) {
      CodecText{text, {}, {}}.refuse(
          "a rule is a pattern of parameters' names and their plan, as in lm_head.*=int8+ef");
    }
    plan.rules.push_back({std::string(rule.substr(0, equals)), ParameterPlan::parse(text, rule.substr(equals + 1))});
    if (plan.rules.back().plan.momentum().has_value() != plan.momentum().has_value()) {
      CodecText{text, {}, {}}.refuse(
          "the momentum of all parameters is either the plan's or the optimizer's: with dgc every rule has it, "
          "as in dgc:0.001;embed.*=dense+dgc");
    }
    if (plan.rules.back().plan.choices) {
      CodecText{text, {}, {}}.refuse(
          "auto is the plan of all parameters, and rules may say others, as in auto;a.*=bf16");
    }
  });
  return plan;
}

std::string Plan::text() const {
  std::string text = general.text();
  for (const Rule& rule : rules) text += ";" + rule.pattern + "=" + rule.plan.text();
  return text;
}

const ParameterPlan& Plan::of(const std::string& parameter) const {
  const auto rule = std::find_if(rules.begin(), rules.end(), [&](const Rule& r) { return r.fits(parameter); });
  return rule == rules.end() ? general : rule->plan;
}

void Plan::require_rules_fit(const std::vector<std::string>& parameters) const {
  for (const Rule& rule : rules) {
    if (std::any_of(parameters.begin(), parameters.end(), [&](const auto& name) { return rule.fits(name); })) continue;
    fail(ErrorCode::invalid_argument, "comm.plan", "the rule for ", rule.pattern, " in ", text(),
         " fits no parameter that has a gradient and is not exempt: write names as named_parameters() does, * stands ",
         "for any text; exempt parameters, small ones where exempt= does not say otherwise, are sent in float32");
  }
}

bool Plan::votes() const {
  return general.votes() || std::any_of(rules.begin(), rules.end(), [](const Rule& rule) { return rule.plan.votes(); });
}

void Plan::change_all(const std::function<void(ParameterPlan&)>& change) {
  change(general);
  for (Rule& rule : rules) change(rule.plan);
}

Plan Plan::for_momentum() const {
  Plan plan = *this;
  plan.change_all([](ParameterPlan& one) { one = one.for_momentum(); });
  return plan;
}

Plan Plan::with_momentum(double momentum) const {
  if (!(momentum >= 0 && momentum < 1))
    fail(ErrorCode::invalid_argument, "comm.plan", "a momentum must be at least 0 and below 1, got ", momentum);
  Plan plan = *this;
  const auto set = [&](ParameterPlan& one) {
    if (one.momentum()) one.feedback = one.feedback->with_momentum(momentum);
  };
  plan.change_all(set);
  return plan;
}

Plan Plan::with_decay(double decay) const {
  if (!(decay > 0 && decay <= 1))
    fail(ErrorCode::invalid_argument, "comm.plan", "a decay must be above 0 and at most 1, got ", decay);
  Plan plan = *this;
  bool has_decay = false;
  const auto set = [&](ParameterPlan& one) {
    FeedbackPtr decayed = one.feedback && !one.map && !one.choices ? one.feedback->with_decay(decay) : nullptr;
    if (!decayed) return;
    one.feedback = std::move(decayed);
    has_decay = true;
  };
  plan.change_all(set);
  if (!has_decay) {
    fail(ErrorCode::invalid_argument, "comm.plan", "decay needs error feedback such as topk:64/4096:sign+ef, and ",
         text(), " has none that decays");
  }
  return plan;
}

Plan Plan::coding_own() const {
  Plan plan = *this;
  const auto set = [](ParameterPlan& one) {
    one.codes_own = one.feedback && !one.map && one.feedback->keeps_own_residual();
  };
  plan.change_all(set);
  return plan;
}

Plan Plan::averaged_over_hits() const {
  Plan plan = *this;
  bool any = false;
  plan.change_all([&](ParameterPlan& one) {
    one.over_hits = one.fits_hits();
    any = any || one.over_hits;
  });
  if (!any) {
    fail(ErrorCode::invalid_argument, "comm.plan",
         "an average over hits needs a codec that leaves most values unsent, ",
         "with +ef or without feedback, such as topk:64/4096:sign+ef, and ", text(), " has none");
  }
  return plan;
}

}  // namespace octavo
