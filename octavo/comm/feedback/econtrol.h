// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "octavo/comm/feedback/ef21.h"

namespace octavo {

// What a rank owes in float32: to the averages of what it sent to owners, and of the sums that it owns.
inline constexpr Role kOwed = {.name = "owed", .extent = Extent::sent, .dtype = at::kFloat, .is_owed = true};
inline constexpr Role kOwedToAll = {
    .name = "owed_to_all", .extent = Extent::owned, .dtype = at::kFloat, .is_owed = true};

/// `+econtrol[:ETA]`: estimates as in `+ef21`, and error feedback beside them (EControl: Gao, Islamov and Stich 2024).
/// Let h be what the receivers believe of a value g, and e what they were not told so far. A rank sends
/// C(ETA*e + g - h). The receivers add that to h and take h for the value, and e becomes e + g - h. Where estimates lag
/// behind gradients that vary from step to step, what they missed is made up for: the sum over all steps loses nothing,
/// as with `+ef`.
///
/// ETA, above 0 and at most 1, is the part of e that a step adds. If it is too large, a codec that leaves out most
/// values chases its own errors: for Gaussian values topk:0.01 diverges from 0.05 on and stays stable at 0.02, and
/// signs are stable at 0.5. The default suits topk:0.01; take 0.1 or more for codecs that send all values, and less for
/// codecs that send fewer. The paper tunes it.
///
/// The paper's server sends to all what it has. Here owners send their sums by the same rule, with an estimate that all
/// ranks share. The memory is that of `+ef21` and 4 bytes for each element.
class OCTAVO_API EControl final : public Feedback {
 public:
  static constexpr double kEta = 0.01;
  explicit EControl(double eta = kEta) : eta_(eta) {}

  std::string text() const override;
  std::vector<Role> roles() const override;
  using Feedback::require_fit;
  void require_fit(const CodecText& text, const Codec& codec) const override;
  bool keeps_estimates() const override { return true; }
  std::shared_ptr<FeedbackMemory> remember(StateStore& store, std::size_t parameter) const override;

 private:
  double eta_;
};

/// Makes the feedback of `econtrol[:ETA]`.
FeedbackPtr make_econtrol(const CodecText& text);

}  // namespace octavo
