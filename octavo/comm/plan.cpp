// SPDX-License-Identifier: Apache-2.0
#include "octavo/comm/plan.h"

#include <algorithm>

#include "octavo/codec/block_coding.h"

namespace octavo {

namespace {

/// A codec of Octavo's own that lives as long as the process.
CodecPtr unowned(const Codec& codec) { return {CodecPtr(), &codec}; }

}  // namespace

Plan::Plan() : codec(unowned(block_coding(BlockCodec::fp32))) {}

Plan Plan::parse(std::string_view text) {
  std::size_t end = std::min(text.find('+'), text.size());
  const CodecText wanted = CodecText::parse(text, text.substr(0, end));
  Plan plan;
  plan.codec = make_codec(wanted);
  while (end < text.size()) {
    const std::size_t begin = end + 1;
    end = std::min(text.find('+', begin), text.size());
    plan.add(wanted, text.substr(begin, end - begin));
  }
  return plan;
}

void Plan::add(const CodecText& text, std::string_view part) {
  constexpr std::string_view kWarmUp = "warmup:";
  constexpr auto kLongest = std::uint64_t{1} << 40;
  if (part == "ef") {
    if (error_feedback) text.refuse("it says +ef twice");
    if (!codec->traits().leaves_error) text.refuse("this codec leaves no error that could be fed back");
    error_feedback = true;
  } else if (part.starts_with(kWarmUp)) {
    const std::uint64_t steps =
        text.whole_number(part.substr(kWarmUp.size()), 1, kLongest, "a warm-up has a number of steps");
    if (warm_up) text.refuse("it has two warm-ups");
    warm_up = std::make_shared<const WarmUp>(WarmUp{steps, codec->warm_up()});
    if (warm_up->codecs.empty()) text.refuse("there is nothing that this codec could begin with");
  } else {
    text.refuse("after the codec there may be +ef and +warmup:STEPS");
  }
}

std::string Plan::text() const {
  std::string text = codec->text();
  if (error_feedback) text += "+ef";
  return warm_up ? text + "+warmup:" + std::to_string(warm_up->steps) : text;
}

const Codec& Plan::at(std::uint64_t step) const {
  const std::uint64_t done = step > 0 ? step - 1 : 0;
  if (!warm_up || done >= warm_up->steps) return *codec;
  return *warm_up->codecs[done * warm_up->codecs.size() / warm_up->steps];
}

bool Plan::dense() const { return codec->fingerprint() == block_coding(BlockCodec::fp32).fingerprint(); }

Plan Plan::for_momentum() const {
  Plan plan = *this;
  if (codec->text() == "sign") plan.codec = std::make_shared<BlockCoding>(BlockCodec::sign, 1U << 18);
  return plan;
}

}  // namespace octavo
