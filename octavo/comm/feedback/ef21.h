// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "octavo/comm/feedback/feedback.h"

namespace octavo {

// What the owners believe of this rank's gradient; what this rank, as an owner, believes of the gradients of the other
// ranks, one rank after another; and what all ranks believe of the average.
inline constexpr Role kSentEstimate = {"sent_estimate", Extent::sent_estimate, at::kFloat};
inline constexpr Role kReceivedEstimates = {"received_estimates", Extent::received_estimates, at::kFloat};
inline constexpr Role kSharedEstimate = {"shared_estimate", Extent::replicated, at::kFloat};

/// `delta+CODEC`, which is `CODEC+ef21`. Ranks send the difference between their gradient and what the owner believes
/// of it; owners send the difference between the average and what all ranks believe of it (EF21: Richtarik et al. 2021,
/// on both ways; DIANA: Mishchenko et al. 2019, for unbiased codecs). As gradients settle, so do the differences, and
/// the error goes to zero, where the error of error feedback stays.
///
/// Both ends of a way keep the estimate, in float32, and change it by the same sums of what was sent, so that the bits
/// are the same. An owner keeps one estimate for each sender, because a sum of their estimates would drift away from
/// them by rounding, for good. In a world of W ranks that is 4*(3 - 2/W) bytes for each element on every rank; `+ef`
/// takes 2.
class OCTAVO_API Ef21 final : public Feedback {
 public:
  std::string text() const override { return "ef21"; }
  std::vector<Role> roles() const override { return {kSentEstimate, kReceivedEstimates, kSharedEstimate}; }
  using Feedback::require_fit;
  void require_fit(const CodecText& text, const Codec& codec) const override;
  bool fits_exact_way() const override { return true; }
  bool keeps_estimates() const override { return true; }
  std::shared_ptr<FeedbackMemory> remember(StateStore& store, std::size_t parameter) const override;
};

FeedbackPtr make_ef21(const CodecText& text);

/// The estimates of one tensor, for both ways.
class OCTAVO_API Ef21Memory : public FeedbackMemory {
 public:
  /// Keeps the estimates of a parameter in `store`, which must outlive this object.
  Ef21Memory(StateStore& store, std::size_t parameter);

  void begin(c10::Device device, const Contribution& tensor, float power) override;
  void encode(const SentPart& part, const EncodeInput& input) override;
  void decode(const SentPart& part, Store store, float* out, std::uint32_t* nonfinite) override;
  /// Makes ranks agree on whether they have estimates: a rank that has them where others have none would continue with
  /// another average.
  std::uint64_t digest() const override { return shared_.tensor().defined() ? 2 : 1; }

 protected:
  struct Estimate {
    const float* now = nullptr;  // null: zeros
    float* next = nullptr;
    Estimate from(std::uint64_t first) const { return {now ? now + first : nullptr, next + first}; }
  };
  /// Returns what receivers believe of a part that this rank sends.
  Estimate of_sent(const SentPart& part) const;

 private:
  static Estimate open(Versioned& state, std::uint64_t count, c10::Device device);
  /// Returns what this rank believes of a part that it receives.
  Estimate of_received(const SentPart& part) const;

  Versioned &sent_, &received_, &shared_;
  int rank_, world_size_;
  OthersRanges layout_;
  Estimate to_owners_, of_others_, of_all_;
};

}  // namespace octavo
