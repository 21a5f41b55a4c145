// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "octavo/comm/parameter_plan.h"
#include "octavo/export.h"

namespace octavo {

/// The plan of a model: the plan of all parameters, and rules for some of them. The first rule that fits a parameter's
/// name counts: `int4+ef;lm_head.*=int8+ef;*embed*=dense`. Patterns are those of fnmatch(3).
struct OCTAVO_API Plan {
  struct Rule {
    std::string pattern;
    ParameterPlan plan;
    bool fits(const std::string& parameter) const;
  };

  ParameterPlan general;  // of the parameters that no rule fits
  std::vector<Rule> rules;

  /// Throws Error invalid_argument for a text that is no plan; the message says what would be one.
  static Plan parse(std::string_view text);
  std::string text() const;
  const ParameterPlan& of(const std::string& parameter) const;
  /// Throws Error invalid_argument where a rule fits none of these parameters.
  void require_rules_fit(const std::vector<std::string>& parameters) const;
  /// Whether all parameters are sent as `dense`.
  bool dense() const { return general.dense() && rules.empty(); }
  /// Returns the momentum that the general plan keeps in the optimizer's place; none where the optimizer keeps it.
  /// Rules keep one if and only if the general plan does.
  std::optional<double> momentum() const { return general.momentum(); }
  /// Whether the plan of any parameter votes.
  bool votes() const;
  Plan for_momentum() const;
  /// Returns the plan with another momentum for all parameters, where it keeps one.
  Plan with_momentum(double momentum) const;
  /// Returns the plan with another decay for all parameters that have `+ef`. Throws Error invalid_argument for a decay
  /// that is not above 0 and at most 1, and where no parameter has `+ef`.
  Plan with_decay(double decay) const;
  /// Returns the plan under which ranks also encode what they own themselves, where `+ef` keeps what codes leave out.
  /// It is for ranks that continue without what they owe (Outer): the code on the way down drops a part of an owner's
  /// exact values, and an owner that did not count it as owed would make the same progress again in every round. Rounds
  /// of signs end with a 3 % lower loss under it (docs/quality/experiments.md), and long rounds of topk, which drops
  /// most values, diverge without it.
  Plan coding_own() const;
  /// Returns the plan with `+hits` for all parameters that take it. Throws Error invalid_argument where none does.
  Plan averaged_over_hits() const;

 private:
  void change_all(const std::function<void(ParameterPlan&)>& change);
};

}  // namespace octavo
