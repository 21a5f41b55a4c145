// SPDX-License-Identifier: Apache-2.0
#include "octavo/comm/feedback/feedback.h"

#include <algorithm>

#include "octavo/comm/feedback/dgc.h"
#include "octavo/comm/feedback/econtrol.h"
#include "octavo/comm/feedback/ef14.h"
#include "octavo/comm/feedback/ef21.h"
#include "octavo/comm/feedback/fetchsgd.h"
#include "octavo/comm/feedback/loco.h"

namespace octavo {

void FeedbackMemory::begin(c10::Device, const Contribution&, float) {}

void FeedbackMemory::encode(const SentPart& part, const EncodeInput& input) {
  part.codec->encode(part.device, input, part.payload, nullptr);
}

void FeedbackMemory::decode(const SentPart& part, Store store, float* out, std::uint32_t* nonfinite) {
  part.codec->decode(part.device, part.payload, store, out, nonfinite);
}

void Feedback::require_fit(const CodecText& plan, const LinearMap&) const {
  plan.refuse("a linear map takes only +ef, and a sketch also +fetchsgd");
}

OwedByRange Feedback::owed(const KeptByRole&, const ParameterInfo&, int, int) const { return {}; }

const std::shared_ptr<FeedbackMemory>& FeedbackMemory::none() {
  static const auto memory = std::make_shared<FeedbackMemory>();
  return memory;
}

void Feedback::require_ways_fit(const CodecText& plan, const Codec& up, const Codec& down) const {
  const bool both = !fits_exact_way() || (up.traits().is_exact() && down.traits().is_exact());
  for (const Codec* const codec : {&up, &down}) {
    if (both || !codec->traits().is_exact()) require_fit(plan, *codec);
  }
}

/// Each kind of feedback has a line here and in feedback_roles().
FeedbackPtr make_feedback(const CodecText& plan, std::string_view piece) {
  const CodecText wanted = CodecText::parse(plan.plan, piece);
  if (wanted.name == "ef") return make_ef14(wanted);
  if (wanted.name == "ef21") return make_ef21(wanted);
  if (wanted.name == "dgc") return make_dgc(wanted);
  if (wanted.name == "econtrol") return make_econtrol(wanted);
  if (wanted.name == "fetchsgd") return make_fetchsgd(wanted);
  if (wanted.name == "loco") return make_loco(wanted);
  return nullptr;
}

std::vector<Role> feedback_roles() {
  std::vector<Role> all;
  for (const auto& roles : {Ef14().roles(), Ef14(1, Ef14::Kept::in_8_bits).roles(), Ef21().roles(), Dgc().roles(),
                            EControl().roles(), FetchSgd().roles(), Loco().roles()}) {
    for (const Role& role : roles) {
      const auto is_it = [&](const Role& other) { return is_same(other, role); };
      if (std::none_of(all.begin(), all.end(), is_it)) all.push_back(role);
    }
  }
  return all;
}

}  // namespace octavo
