// SPDX-License-Identifier: Apache-2.0
#include "octavo/comm/plan.h"

#include <charconv>

#include "octavo/kernels/error.h"

namespace octavo {

namespace {

constexpr std::uint64_t kSmallestBlock = 8, kLargestBlock = 1U << 24;

/// float32 travels as it is, by the process group's own all-reduce.
constexpr std::string_view kDense = "dense";

std::string_view name_of(BlockCodec codec) { return codec == BlockCodec::fp32 ? kDense : traits(codec).name; }

constexpr std::string_view kStochastic = "stochastic";

/// Of a codec's block only the size matters, and only where it has a scale of its own.
bool may_set_block(BlockCodec codec) { return traits(codec).has_scale && traits(codec).keeps_magnitude; }

std::string all_names() {
  std::string names;
  for (const BlockCodec codec : all_block_codecs()) names += (names.empty() ? "" : ", ") + std::string(name_of(codec));
  return names;
}

[[noreturn]] void refuse(std::string_view text, std::string_view because) {
  fail(ErrorCode::invalid_argument, "comm.plan", "expected ", all_names(),
       ", with a block size as in sign:1024, unbiased rounding as in int8:stochastic or error feedback as in sign+ef, ",
       "got '", text, "': ", because);
}

BlockCodec find(std::string_view text, std::string_view name) {
  for (const BlockCodec codec : all_block_codecs()) {
    if (name_of(codec) == name) return codec;
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

/// `is_first`: a block, where there is one, comes first.
void set_option(Plan& plan, std::string_view text, std::string_view option, bool is_first) {
  if (option == kStochastic) {
    if (plan.stochastic) refuse(text, "it says stochastic twice");
    if (!traits(plan.codec).dithers) refuse(text, "only int2 to int8 round stochastically");
    plan.stochastic = true;
    return;
  }
  if (!may_set_block(plan.codec)) refuse(text, "this codec has no blocks");
  if (!is_first) refuse(text, "its block comes first, and once");
  plan.block = parse_block(text, option);
}

}  // namespace

Plan Plan::parse(std::string_view text) {
  const auto plus = text.find('+');
  const auto head = text.substr(0, plus);
  const auto colon = head.find(':');
  Plan plan = {find(text, head.substr(0, colon))};
  plan.block = traits(plan.codec).default_block;
  for (std::size_t at = colon; at != std::string_view::npos;) {
    const auto next = head.find(':', at + 1);
    set_option(plan, text, head.substr(at + 1, next == std::string_view::npos ? next : next - at - 1), at == colon);
    at = next;
  }
  if (plus != std::string_view::npos) {
    if (text.substr(plus) != "+ef") refuse(text, "the only feedback is +ef");
    if (!traits(plan.codec).leaves_error) refuse(text, "this codec leaves no error that could be fed back");
    plan.error_feedback = true;
  }
  return plan;
}

std::string Plan::text() const {
  std::string text(name_of(codec));
  if (may_set_block(codec) && block != traits(codec).default_block) text += ":" + std::to_string(block);
  if (stochastic) text += ":" + std::string(kStochastic);
  return error_feedback ? text + "+ef" : text;
}

Plan Plan::for_momentum() const {
  Plan plan = *this;
  if (codec == BlockCodec::sign && block == traits(codec).default_block) plan.block = 1U << 18;
  return plan;
}

Format Plan::down() const { return up(); }

}  // namespace octavo
