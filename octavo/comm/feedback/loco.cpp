// SPDX-License-Identifier: Apache-2.0
#include "octavo/comm/feedback/loco.h"

#include "octavo/comm/feedback/packed_owed.h"

namespace octavo {

std::vector<Role> Loco::roles() const { return {kPackedOwed, kPackedOwedToAll}; }

std::string Loco::text() const {
  if (period_ != kPeriod) return "loco:" + shortest(beta_) + ":" + std::to_string(period_);
  return beta_ == kBeta ? "loco" : "loco:" + shortest(beta_);
}

void Loco::require_fit(const CodecText& text, const Codec& codec) const {
  if (!codec.traits().leaves_error) text.refuse("this codec leaves no error that could be fed back");
  require_one_sum_fits(text, codec);
}

std::shared_ptr<FeedbackMemory> Loco::remember(StateStore& store, std::size_t parameter) const {
  return std::make_shared<PackedOwed>(store, parameter,
                                      Repayment{.share = static_cast<float>(1.0 - beta_), .period = period_});
}

FeedbackPtr make_loco(const CodecText& text) {
  constexpr auto kExpected =
      "loco takes a share of the past of at least 0 and below 1, and after how many steps it begins anew, as in "
      "int4+loco:0.8:1024";
  if (text.options.size() > 2) text.refuse(kExpected);
  const double beta = text.options.empty() ? Loco::kBeta : text.number(text.options[0], kExpected);
  if (!(beta >= 0 && beta < 1)) text.refuse(kExpected);
  if (text.options.size() < 2) return std::make_shared<Loco>(beta);
  return std::make_shared<Loco>(beta, text.whole_number(text.options[1], 1, kMostSteps, kExpected));
}

}  // namespace octavo
