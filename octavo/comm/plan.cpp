// SPDX-License-Identifier: Apache-2.0
#include "octavo/comm/plan.h"

#include <algorithm>
#include <fnmatch.h>

#include "octavo/codec/block_coding.h"
#include "octavo/kernels/error.h"

namespace octavo {

namespace {

/// A codec of Octavo's own that lives as long as the process.
CodecPtr unowned(const Codec& codec) { return {CodecPtr(), &codec}; }

struct Split {
  std::string_view first;
  std::string_view rest;  // from the separator on; empty where there is none
};
Split split(std::string_view text, char separator) {
  const std::size_t end = std::min(text.find(separator), text.size());
  return {text.substr(0, end), text.substr(end)};
}

/// Calls visit(piece) for all pieces of "+piece+piece".
template <class Visit>
void for_each_piece(std::string_view rest, char separator, Visit visit) {
  while (!rest.empty()) {
    const Split pieces = split(rest.substr(1), separator);
    visit(pieces.first);
    rest = pieces.rest;
  }
}

}  // namespace

ParameterPlan::ParameterPlan() : codec(unowned(block_coding(BlockCodec::fp32))) {}

ParameterPlan ParameterPlan::parse(std::string_view plan, std::string_view text) {
  const auto [codec, rest] = split(text, '+');
  const CodecText wanted = CodecText::parse(plan, codec);
  ParameterPlan parsed;
  parsed.map = make_map(wanted);
  if (!parsed.map) parsed.codec = make_codec(wanted);
  for_each_piece(rest, '+', [&](std::string_view part) { parsed.add(wanted, part); });
  return parsed;
}

void ParameterPlan::add(const CodecText& text, std::string_view part) {
  constexpr std::string_view kWarmUp = "warmup:";
  constexpr auto kLongest = std::uint64_t{1} << 40;
  if (part == "ef") {
    if (error_feedback) text.refuse("it says +ef twice");
    if (!map && !codec->traits().leaves_error) text.refuse("this codec leaves no error that could be fed back");
    error_feedback = true;
  } else if (part.starts_with(kWarmUp)) {
    const std::uint64_t steps =
        text.whole_number(part.substr(kWarmUp.size()), 1, kLongest, "a warm-up has a number of steps");
    if (warm_up) text.refuse("it has two warm-ups");
    warm_up = std::make_shared<const WarmUp>(WarmUp{steps, codec->warm_up()});
    if (!map && warm_up->codecs.empty()) text.refuse("there is nothing that this codec could begin with");
  } else {
    text.refuse("after the codec there may be +ef and +warmup:STEPS");
  }
}

std::string ParameterPlan::text() const {
  std::string text = map ? map->text() : codec->text();
  if (error_feedback) text += "+ef";
  return warm_up ? text + "+warmup:" + std::to_string(warm_up->steps) : text;
}

const Codec& ParameterPlan::at(std::uint64_t step) const {
  const std::uint64_t done = step > 0 ? step - 1 : 0;
  if (!warm_up || warm_up->codecs.empty() || done >= warm_up->steps) return *codec;
  return *warm_up->codecs[done * warm_up->codecs.size() / warm_up->steps];
}

const LinearMap* ParameterPlan::map_at(std::uint64_t step) const {
  return warm_up && step <= warm_up->steps ? nullptr : map.get();
}

bool ParameterPlan::dense() const {
  return !map && codec->fingerprint() == block_coding(BlockCodec::fp32).fingerprint();
}

ParameterPlan ParameterPlan::for_momentum() const {
  ParameterPlan plan = *this;
  if (codec->text() == "sign") plan.codec = std::make_shared<BlockCoding>(BlockCodec::sign, 1U << 18);
  return plan;
}

bool Plan::Rule::fits(const std::string& parameter) const {
  return fnmatch(pattern.c_str(), parameter.c_str(), 0) == 0;
}

Plan Plan::parse(std::string_view text) {
  const auto [all, rest] = split(text, ';');
  Plan plan;
  static_cast<ParameterPlan&>(plan) = ParameterPlan::parse(text, all);
  for_each_piece(rest, ';', [&](std::string_view rule) {
    const std::size_t equals = rule.find('=');
    if (equals == 0 || equals == std::string_view::npos) {
      CodecText{text, {}, {}}.refuse(
          "a rule is a pattern of parameters' names and their plan, as in lm_head.*=int8+ef");
    }
    plan.rules.push_back({std::string(rule.substr(0, equals)), ParameterPlan::parse(text, rule.substr(equals + 1))});
  });
  return plan;
}

std::string Plan::text() const {
  std::string text = ParameterPlan::text();
  for (const Rule& rule : rules) text += ";" + rule.pattern + "=" + rule.plan.text();
  return text;
}

const ParameterPlan& Plan::of(const std::string& parameter) const {
  const auto rule = std::find_if(rules.begin(), rules.end(), [&](const Rule& r) { return r.fits(parameter); });
  return rule == rules.end() ? *this : rule->plan;
}

void Plan::require_rules_fit(const std::vector<std::string>& parameters) const {
  for (const Rule& rule : rules) {
    if (std::any_of(parameters.begin(), parameters.end(), [&](const auto& name) { return rule.fits(name); })) continue;
    fail(ErrorCode::invalid_argument, "comm.plan", "the rule for ", rule.pattern, " in ", text(),
         " fits no parameter that has a gradient and is not exempt: write names as named_parameters() does, * stands ",
         "for any text; exempt parameters, small ones where exempt= does not say otherwise, travel in float32");
  }
}

bool Plan::votes() const {
  return ParameterPlan::votes() ||
         std::any_of(rules.begin(), rules.end(), [](const Rule& rule) { return rule.plan.votes(); });
}

Plan Plan::for_momentum() const {
  Plan plan = *this;
  static_cast<ParameterPlan&>(plan) = ParameterPlan::for_momentum();
  for (Rule& rule : plan.rules) rule.plan = rule.plan.for_momentum();
  return plan;
}

}  // namespace octavo
