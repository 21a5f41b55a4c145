// SPDX-License-Identifier: Apache-2.0
#include "octavo/comm/feedback/fetchsgd.h"

namespace octavo {

std::string FetchSgd::text() const {
  return momentum_ == Dgc::kMomentum ? "fetchsgd" : "fetchsgd:" + shortest(momentum_);
}

std::vector<Role> FetchSgd::roles() const { return {kVelocity}; }

void FetchSgd::require_fit(const CodecText& text, const Codec&) const {
  text.refuse(
      "fetchsgd keeps its momentum in a sketch, as in sketch:0.1+fetchsgd: of a codec take dgc, as in topk:0.01+dgc");
}

void FetchSgd::require_fit(const CodecText& text, const LinearMap& map) const {
  if (!map.keeps_momentum())
    text.refuse("fetchsgd keeps its momentum in a sketch of estimates, as in sketch:0.1+fetchsgd");
}

std::shared_ptr<FeedbackMemory> FetchSgd::remember(StateStore& store, std::size_t parameter) const {
  return Dgc(momentum_).remember(store, parameter);
}

FeedbackPtr make_fetchsgd(const CodecText& text) {
  constexpr auto kExpected = "fetchsgd takes a momentum of at least 0 and below 1, as in sketch:0.1+fetchsgd:0.9";
  return std::make_shared<FetchSgd>(momentum_option(text, kExpected));
}

}  // namespace octavo
