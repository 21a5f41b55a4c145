// SPDX-License-Identifier: Apache-2.0
#include "octavo/comm/plan.h"

#include <array>
#include <charconv>

#include "octavo/kernels/error.h"

namespace octavo {

namespace {

struct Name {
  std::string_view text;
  Codec codec;
  bool may_feed_back;
  bool may_set_block;
};

constexpr std::array kNames = {
    Name{"dense", Codec::fp32, false, false},
    Name{"bf16", Codec::bf16, false, false},
    Name{"int4", Codec::int4, true, true},
    Name{"sign", Codec::scaled_sign, true, true},
    Name{"sign-vote", Codec::majority_vote, false, false},
};

constexpr std::uint64_t kSmallestBlock = 8, kLargestBlock = 1U << 24;

[[noreturn]] void refuse(std::string_view text, std::string_view because) {
  fail(ErrorCode::invalid_argument, "comm.plan",
       "expected dense, bf16, int4, int4+ef, sign, sign+ef or sign-vote (a block size as in sign:1024+ef), got '", text,
       "': ", because);
}

const Name& find(std::string_view text, std::string_view name) {
  for (const Name& known : kNames) {
    if (known.text == name) return known;
  }
  refuse(text, "there is no such codec");
}

std::uint64_t parse_block(std::string_view text, std::string_view digits) {
  std::uint64_t block = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), block);
  if (error != std::errc() || end != digits.data() + digits.size() || block < kSmallestBlock || block > kLargestBlock ||
      block % 8 != 0) {
    refuse(text, "a block is a multiple of 8 from 8 to 16777216");
  }
  return block;
}

}  // namespace

Plan Plan::parse(std::string_view text) {
  const auto plus = text.find('+');
  const auto head = text.substr(0, plus);
  const auto colon = head.find(':');
  const Name& name = find(text, head.substr(0, colon));

  Plan plan{name.codec, traits(name.codec).default_block, false};
  if (colon != std::string_view::npos) {
    if (!name.may_set_block) refuse(text, "this codec has no blocks");
    plan.block = parse_block(text, head.substr(colon + 1));
  }
  if (plus != std::string_view::npos) {
    if (text.substr(plus) != "+ef") refuse(text, "the only feedback is +ef");
    if (!name.may_feed_back) refuse(text, "this codec leaves no error that could be fed back");
    plan.error_feedback = true;
  }
  return plan;
}

std::string Plan::text() const {
  for (const Name& name : kNames) {
    if (name.codec != codec) continue;
    std::string text(name.text);
    if (name.may_set_block && block != traits(codec).default_block) text += ":" + std::to_string(block);
    return error_feedback ? text + "+ef" : text;
  }
  fail(ErrorCode::internal, "comm.plan", "no plan has the codec ", traits(codec).name);
}

Plan Plan::for_momentum() const {
  Plan plan = *this;
  if (codec == Codec::scaled_sign && block == traits(codec).default_block) plan.block = 1U << 18;
  return plan;
}

Format Plan::down() const { return up(); }

}  // namespace octavo
