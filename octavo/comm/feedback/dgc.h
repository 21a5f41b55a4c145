// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "octavo/comm/feedback/ef14.h"

namespace octavo {

/// The velocities of a rank's own gradients, for the whole tensor.
inline constexpr Role kVelocity = {"velocity", Extent::whole, at::kFloat};

/// `dgc:RATIO`, which is `topk:RATIO+dgc`: Deep Gradient Compression (Lin et al. 2018). Each rank sends the velocity
/// momentum*velocity + gradient in place of its gradient. What is not sent of it is accumulated, as by `+ef`; where
/// something was sent the velocity starts again from zero. A rank's values for its own range count as sent when the
/// owner sends them to all. The optimizer must then have no momentum. Parameters whose codec leaves no error, exempt
/// ones among them, have plain momentum.
///
/// `+clip:NORM` first scales a rank's gradient of a tensor (between replicas of shards: of its shard) down to
/// NORM/sqrt(ranks). A tensor whose gradient is zero on every rank is not touched: its velocity stays as it is, as
/// torch does where a gradient is absent.
class OCTAVO_API Dgc final : public Feedback {
 public:
  static constexpr double kMomentum = 0.9;
  /// `norm`: 0 means no clipping.
  explicit Dgc(double momentum = kMomentum, double norm = 0) : momentum_(momentum), norm_(norm) {}

  std::string text() const override;
  std::vector<Role> roles() const override { return {kWorkerResidual, kOwnerResidual, kVelocity}; }
  using Feedback::require_fit;
  void require_fit(const CodecText& text, const Codec& codec) const override;
  bool fits_exact_way() const override { return true; }
  std::shared_ptr<FeedbackMemory> remember(StateStore& store, std::size_t parameter) const override;
  bool needs_whole_power() const override { return norm_ > 0; }
  std::optional<double> momentum() const override { return momentum_; }
  FeedbackPtr with_momentum(double momentum) const override { return std::make_shared<Dgc>(momentum, norm_); }
  FeedbackPtr clipped(double norm) const override {
    return norm_ > 0 ? nullptr : std::make_shared<Dgc>(momentum_, norm);
  }

 private:
  double momentum_, norm_;
};

/// Returns the momentum of a feedback that has it as its only option, Dgc::kMomentum where it is left out. Refuses,
/// saying `expected`, what is not in [0, 1).
double momentum_option(const CodecText& text, std::string_view expected);

/// Makes the feedback of `dgc[:MOMENTUM]`.
FeedbackPtr make_dgc(const CodecText& text);

}  // namespace octavo
