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

namespace {

struct Kind {
  std::string_view name;
  FeedbackPtr (*make)(const CodecText& text);
  std::vector<Role> (*roles)();  // of every form of this kind
};

template <class One>
std::vector<Role> roles_of() {
  return One().roles();
}

std::vector<Role> roles_of_ef() {
  std::vector<Role> roles = Ef14().roles();
  const std::vector<Role> in_8_bits = Ef14(1, Ef14::Kept::in_8_bits).roles();
  roles.insert(roles.end(), in_8_bits.begin(), in_8_bits.end());
  return roles;
}

/// Each kind of feedback is a line here.
constexpr Kind kKinds[] = {{"ef", make_ef14, roles_of_ef},
                           {"ef21", make_ef21, roles_of<Ef21>},
                           {"dgc", make_dgc, roles_of<Dgc>},
                           {"econtrol", make_econtrol, roles_of<EControl>},
                           {"fetchsgd", make_fetchsgd, roles_of<FetchSgd>},
                           {"loco", make_loco, roles_of<Loco>}};

}  // namespace

void Feedback::require_fit(const CodecText& text, const LinearMap&) const {
  text.refuse("a linear map takes only +ef, and a sketch also +fetchsgd");
}

OwedByRange Feedback::owed(const KeptByRole&, const ParameterInfo&, int, int) const { return {}; }

void Feedback::require_one_sum_fits(const CodecText& text, const Codec& codec) {
  if (!codec.traits().weighs_residual) return;
  text.refuse(codec.text() + " measures values without what is owed, which this feedback adds to them: use " +
              codec.text() + "+ef");
}

void Feedback::require_ways_fit(const CodecText& text, const Codec& up, const Codec& down) const {
  const bool both = !fits_exact_way() || (up.traits().is_exact() && down.traits().is_exact());
  for (const Codec* const codec : {&up, &down}) {
    if (both || !codec->traits().is_exact()) require_fit(text, *codec);
  }
}

FeedbackPtr make_feedback(const CodecText& text, std::string_view piece) {
  const CodecText wanted = CodecText::parse(text.plan, piece);
  for (const Kind& kind : kKinds) {
    if (kind.name == wanted.name) return kind.make(wanted);
  }
  return nullptr;
}

std::vector<std::string> feedback_names() {
  std::vector<std::string> names;
  for (const Kind& kind : kKinds) names.emplace_back(kind.name);
  return names;
}

std::vector<Role> feedback_roles() {
  std::vector<Role> all;
  for (const Kind& kind : kKinds) {
    for (const Role& role : kind.roles()) {
      const auto is_it = [&](const Role& other) { return is_same(other, role); };
      if (std::none_of(all.begin(), all.end(), is_it)) all.push_back(role);
    }
  }
  return all;
}

}  // namespace octavo
