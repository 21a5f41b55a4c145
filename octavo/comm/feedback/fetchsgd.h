// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "octavo/comm/feedback/dgc.h"

namespace octavo {

/// `sketch:RATIO+fetchsgd[:MOMENTUM]`: momentum and error feedback inside the sketch (FetchSGD, Rothchild et al. 2020).
/// The mean of the ranks' sketches is added to a momentum, which is added to the error. The largest elements are taken
/// from the error, and their cells are emptied in both (codec/count_sketch.h). Nothing is kept for each element, and
/// all ranks keep the same. The optimizer must then have no momentum.
///
/// Tensors that are sent as they are (small ones, exempt ones, and all in a dense warm-up) have plain momentum on each
/// rank, as with `+dgc`. After a warm-up the momentum in the sketch begins with zeros. A tensor whose gradient is zero
/// on every rank is not touched.
class OCTAVO_API FetchSgd final : public Feedback {
 public:
  explicit FetchSgd(double momentum = Dgc::kMomentum) : momentum_(momentum) {}

  std::string text() const override;
  std::vector<Role> roles() const override;
  void require_fit(const CodecText& text, const Codec& codec) const override;
  void require_fit(const CodecText& text, const LinearMap& map) const override;
  /// Makes the memory for tensors that are sent as they are.
  std::shared_ptr<FeedbackMemory> remember(StateStore& store, std::size_t parameter) const override;
  std::optional<double> momentum() const override { return momentum_; }
  FeedbackPtr with_momentum(double momentum) const override { return std::make_shared<FetchSgd>(momentum); }

 private:
  double momentum_;
};

/// Makes the feedback of `fetchsgd[:MOMENTUM]`.
FeedbackPtr make_fetchsgd(const CodecText& text);

}  // namespace octavo
