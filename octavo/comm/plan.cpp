// SPDX-License-Identifier: Apache-2.0
#include "octavo/comm/plan.h"

#include "octavo/codec/block_coding.h"
#include "octavo/codec/registry.h"

namespace octavo {

namespace {

/// A codec of Octavo's own that lives as long as the process.
CodecPtr unowned(const Codec& codec) { return {CodecPtr(), &codec}; }

}  // namespace

Plan::Plan() : codec(unowned(block_coding(BlockCodec::fp32))) {}

Plan Plan::parse(std::string_view text) {
  const auto plus = text.find('+');
  const CodecText wanted = CodecText::parse(text, text.substr(0, plus));
  Plan plan;
  plan.codec = make_codec(wanted);
  if (plus == std::string_view::npos) return plan;
  if (text.substr(plus) != "+ef") wanted.refuse("the only feedback is +ef");
  if (!plan.codec->traits().leaves_error) wanted.refuse("this codec leaves no error that could be fed back");
  plan.error_feedback = true;
  return plan;
}

std::string Plan::text() const { return error_feedback ? codec->text() + "+ef" : codec->text(); }

bool Plan::dense() const { return codec->fingerprint() == block_coding(BlockCodec::fp32).fingerprint(); }

Plan Plan::for_momentum() const {
  Plan plan = *this;
  if (codec->text() == "sign") plan.codec = std::make_shared<BlockCoding>(BlockCodec::sign, 1U << 18);
  return plan;
}

}  // namespace octavo
