// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "octavo/comm/feedback/feedback.h"

namespace octavo {

// What the owners believe of this rank's gradient; what this rank, as an owner, believes of the others', one after
// another; what all ranks believe of the average.
inline constexpr Role kSentEstimate = {"sent_estimate", Extent::sent_estimate, at::kFloat};
inline constexpr Role kReceivedEstimates = {"received_estimates", Extent::received_estimates, at::kFloat};
inline constexpr Role kSharedEstimate = {"shared_estimate", Extent::replicated, at::kFloat};

/// `delta+CODEC`, which is `CODEC+ef21`: ranks send the difference of their gradient to what the owner believes of it,
/// and owners that of the average to what all ranks believe of it (EF21: Richtarik et al. 2021, on both ways; DIANA:
/// Mishchenko et al. 2019, for unbiased codecs). As gradients settle, so do the differences, and the error goes to
/// zero where that of error feedback stays.
///
/// Both ends of a way keep the estimate, in float32, and change it by the same sums of what was sent: the bits are the
/// same. An owner keeps one for each sender, since the sum of theirs would drift away from them by rounding, for good.
/// In a world of W ranks that is 4*(3 - 2/W) bytes for each element on every rank; `+ef` takes 2.
class OCTAVO_API Ef21 final : public Feedback {
 public:
  std::string text() const override { return "ef21"; }
  std::vector<Role> roles() const override { return {kSentEstimate, kReceivedEstimates, kSharedEstimate}; }
  void require_fit(const CodecText& plan, const Codec& codec) const override;
  bool fits_exact_way() const override { return true; }
  std::shared_ptr<Memory> remember(StateStore& store, std::size_t parameter) const override;
};

FeedbackPtr make_ef21(const CodecText& text);

}  // namespace octavo
