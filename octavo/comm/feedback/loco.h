// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "octavo/comm/feedback/feedback.h"

namespace octavo {

/// `+loco[:BETA[:PERIOD]]`: a moving average of past errors, kept in 8 bits, is added to what is sent, and begins anew
/// every PERIOD steps (LoCo: Xie et al. 2025, arXiv 2407.04480). With e that average, a rank sends C(g + e), and e
/// becomes BETA*e + (1-BETA)*(g + e - C(g + e)), on both ways. The defaults, 0.8 and 1024, are those that DeepSpeed
/// documented (err_beta and reset_T of zeropp_loco_param, until 2026); its code is the source of the rule.
///
/// What is kept here is o = e/(1-BETA), which is what is owed to the sum over all steps: o becomes o + g - C(g +
/// (1-BETA)*o). So LoCo is error feedback that pays back a part of what it owes in each step; what is owed when the
/// period ends is lost. Blocks of 256 share a scale: 1.02 bytes for each element, where `+ef` takes 2. They are rounded
/// stochastically, unlike DeepSpeed's; state/packed.h says why.
class OCTAVO_API Loco final : public Feedback {
 public:
  static constexpr double kBeta = 0.8;
  static constexpr std::uint64_t kPeriod = 1024;
  explicit Loco(double beta = kBeta, std::uint64_t period = kPeriod) : beta_(beta), period_(period) {}

  std::string text() const override;
  std::vector<Role> roles() const override;
  using Feedback::require_fit;
  void require_fit(const CodecText& text, const Codec& codec) const override;
  bool fits_kept_sums() const override { return true; }
  std::shared_ptr<FeedbackMemory> remember(StateStore& store, std::size_t parameter) const override;

 private:
  double beta_;
  std::uint64_t period_;
};

/// Makes the feedback of `loco[:BETA[:PERIOD]]`.
FeedbackPtr make_loco(const CodecText& text);

}  // namespace octavo
