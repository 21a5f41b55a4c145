// SPDX-License-Identifier: Apache-2.0
#include "octavo/comm/parameter_plan.h"

#include <algorithm>
#include <array>

#include "octavo/codec/block_coding.h"
#include "octavo/codec/registry.h"
#include "octavo/comm/feedback/ef14.h"
#include "octavo/comm/text_pieces.h"
#include "octavo/kernels/error.h"

namespace octavo {

namespace {

/// The plans that `auto` chooses from, and the last of them that it takes where the text has no option. Only those who
/// ask for it get sign+ef: unlike the others it does not train as dense does under every optimizer (docs/quality.md).
constexpr std::string_view kAuto = "auto", kAutoLast = "int4";
constexpr std::array<std::string_view, 5> kAutoChoices = {"dense", "bf16", "int8+ef", "int4+ef", "sign+ef"};

/// Returns a pointer that does not own the codec, for Octavo's own codecs, which exist as long as the process.
CodecPtr unowned(const Codec& codec) { return {CodecPtr(), &codec}; }

}  // namespace

ParameterPlan::ParameterPlan() : codec(unowned(block_coding(BlockCodec::fp32))) {}

ParameterPlan ParameterPlan::parse(std::string_view plan, std::string_view text) {
  constexpr std::string_view kDelta = "delta+", kDgc = "dgc:";
  const bool is_delta = text.starts_with(kDelta), is_dgc = text.starts_with(kDgc);
  const auto [codec, rest] = split(text.substr(is_delta ? kDelta.size() : 0), '+');
  CodecText wanted = CodecText::parse(plan, codec);
  if (is_dgc) wanted.name = "topk";
  if (wanted.name == kAuto) {
    if (!rest.empty() || is_delta)
      wanted.refuse("auto chooses codecs and error feedback itself, and has no warm-up and no +down");
    return automatic(wanted);
  }
  ParameterPlan parsed;
  parsed.map = make_map(wanted);
  if (!parsed.map) parsed.codec = make_codec(wanted);
  if (is_delta) parsed.set_feedback(wanted, make_feedback(wanted, "ef21"));
  if (is_dgc) parsed.set_feedback(wanted, make_feedback(wanted, "dgc"));
  for_each_piece(rest, '+', [&](std::string_view part) { parsed.add(wanted, part); });
  parsed.complete(wanted);
  return parsed;
}

void ParameterPlan::set_feedback(const CodecText& text, FeedbackPtr wanted) {
  if (feedback) text.refuse("it has two kinds of feedback, and there is one at most");
  if (map) wanted->require_fit(text, *map);
  feedback = std::move(wanted);
}

void ParameterPlan::set_down(const CodecText& text, std::string_view wanted) {
  if (down) text.refuse("it has two codecs for the way down");
  const CodecText codec_text = CodecText::parse(text.plan, wanted);
  if (map || make_map(codec_text)) {
    text.refuse(
        "the images of a linear map are sent unchanged in both directions: +down is for codecs of values, as in "
        "topk:0.01+down:int8");
  }
  down = make_codec(codec_text);
}

void ParameterPlan::complete(const CodecText& text) {
  if (down && down->fingerprint() == codec->fingerprint()) down = nullptr;
  if (compares() && !feedback) set_feedback(text, make_feedback(text, "ef21"));
  if (compares() && !feedback->keeps_estimates()) {
    text.refuse(
        "lsh compares values with what receivers took for them before, of which +ef21 and +econtrol keep an estimate: "
        "write lsh:int4, which is lsh:int4+ef21, or lsh:int4+econtrol:0.1");
  }
  require_legal(text);
  if (!warm_up) return;
  warm_up = std::make_shared<const WarmUp>(
      WarmUp{warm_up->steps, codec->warm_up(), down ? down->warm_up() : std::vector<CodecPtr>()});
  if (!map && warm_up->codecs.empty() && warm_up->down.empty())
    text.refuse("there is nothing that this codec could begin with");
}

/// Checks both ways together, by the traits of their codecs.
void ParameterPlan::require_legal(const CodecText& text) const {
  const CodecTraits& up_traits = codec->traits();
  const CodecTraits& down_traits = down ? down->traits() : up_traits;
  if (down && !(up_traits.keeps_magnitude && down_traits.keeps_magnitude)) {
    text.refuse(
        "votes go both ways, up as signs and down as the majority's: sign-vote takes no +down, and averages need a "
        "codec that keeps magnitudes, as in int4+down:int8");
  }
  if (down && up_traits.draws_places && down_traits.draws_places) {
    text.refuse(
        "each of the two ways draws other places, so that most values that are sent up would not be sent down: leave "
        "+down out, and both ways draw the same places, or name a codec that draws none, as in randomk:0.01+down:int8");
  }
  if (feedback && !map) feedback->require_ways_fit(text, *codec, down ? *down : *codec);
  if (over_hits) require_fits_hits(text);
}

bool ParameterPlan::fits_hits() const {
  return !map && codec->traits().leaves_unsent && (!feedback || feedback->keeps_own_residual());
}

void ParameterPlan::require_fits_hits(const CodecText& text) const {
  if (fits_hits()) return;
  if (!map && codec->traits().leaves_unsent) {
    text.refuse(
        "+hits encodes what a rank owns itself, too, and +ef alone keeps what that leaves out: use +ef or no feedback, "
        "as in topk:64/4096:sign+ef+hits");
  }
  text.refuse(
      "+hits divides each sum by the number of ranks that sent a value there, and all ranks send all values of this: "
      "it is for topk, threshold and randomk, as in topk:64/4096:sign+ef+hits");
}

ParameterPlan ParameterPlan::automatic(const CodecText& text) {
  const std::string_view last = text.options.empty() ? kAutoLast : text.options[0];
  std::vector<ParameterPlan> choices;
  bool is_last = text.options.size() > 1;
  for (auto next = kAutoChoices.begin(); next != kAutoChoices.end() && !is_last; ++next) {
    choices.push_back(parse(text.plan, *next));
    is_last = choices.size() > 1 && choices.back().codec->text() == last;
  }
  if (!is_last || choices.empty())
    text.refuse("after auto there may be :bf16, :int8, :int4 (what auto means) or :sign");
  ParameterPlan plan;
  plan.feedback = std::make_shared<Ef14>();  // also for a choice without feedback, which first sends what is owed
  plan.choices = std::make_shared<const std::vector<ParameterPlan>>(std::move(choices));
  return plan;
}

void ParameterPlan::add(const CodecText& text, std::string_view part) {
  constexpr std::string_view kWarmUp = "warmup:", kClip = "clip:", kDown = "down:", kHits = "hits";
  if (FeedbackPtr wanted = make_feedback(text, part)) {
    set_feedback(text, std::move(wanted));
  } else if (part.starts_with(kClip)) {
    constexpr auto kExpected = "a gradient is clipped to a norm above 0, as in dgc:0.001+clip:1";
    const double norm = text.number(part.substr(kClip.size()), kExpected);
    FeedbackPtr clipped = feedback ? feedback->clipped(norm) : nullptr;
    if (!clipped || !(norm > 0)) text.refuse(clipped ? kExpected : "only dgc clips, once, and +clip follows it");
    feedback = std::move(clipped);
  } else if (part == kHits) {
    if (over_hits) text.refuse("it has two +hits");
    over_hits = true;
  } else if (part.starts_with(kWarmUp)) {
    const std::uint64_t steps =
        text.whole_number(part.substr(kWarmUp.size()), 1, kMostSteps, "a warm-up has a number of steps");
    if (warm_up) text.refuse("it has two warm-ups");
    warm_up = std::make_shared<const WarmUp>(WarmUp{steps});
  } else if (part.starts_with(kDown)) {
    set_down(text, part.substr(kDown.size()));
  } else {
    std::string kinds;
    for (const std::string& kind : feedback_names()) kinds.append(kinds.empty() ? "+" : ", +").append(kind);
    text.refuse("after the codec there may be +down:CODEC, +hits, +warmup:STEPS and one of " + kinds);
  }
}

std::string ParameterPlan::text() const {
  if (choices) {
    const std::string& last = choices->back().codec->text();
    return std::string(kAuto) + (last == kAutoLast ? "" : ":" + last);
  }
  std::string text = map ? map->text() : codec->text();
  if (down) text.append("+down:").append(down->text());
  if (feedback) text.append("+").append(feedback->text());
  if (over_hits) text.append("+hits");
  return warm_up ? text + "+warmup:" + std::to_string(warm_up->steps) : text;
}

/// Returns the codec of one way: that of the warm-up as long as it lasts, and `after` from then on.
const Codec& ParameterPlan::way_at(std::uint64_t step, std::vector<CodecPtr> WarmUp::* stages,
                                   const CodecPtr& after) const {
  const std::uint64_t done = step > 0 ? step - 1 : 0;
  if (!warm_up || done >= warm_up->steps || (*warm_up.*stages).empty()) return *after;
  const std::vector<CodecPtr>& codecs = *warm_up.*stages;
  return *codecs[done * codecs.size() / warm_up->steps];
}

/// Where the way down has a codec of its own, it does not complete what the other codec sends up.
ParameterPlan::Codecs ParameterPlan::at(std::uint64_t step) const {
  const Codec& own = way_at(step, &WarmUp::codecs, codec);
  if (down) return {&own.upward_only(), &way_at(step, &WarmUp::down, down)};
  return {&own.upward(), &own};
}

ParameterPlan::Codecs ParameterPlan::kept_at(std::uint64_t step) const {
  const Codec& own = way_at(step, &WarmUp::codecs, codec);
  return {&own.upward_only(), votes() ? &own : &block_coding(BlockCodec::fp32)};
}

const LinearMap* ParameterPlan::map_at(std::uint64_t step) const {
  return warm_up && step <= warm_up->steps ? nullptr : map.get();
}

bool ParameterPlan::dense() const {
  return !map && !choices && !feedback && !down && codec->fingerprint() == block_coding(BlockCodec::fp32).fingerprint();
}

ParameterPlan ParameterPlan::for_momentum() const {
  ParameterPlan plan = *this;
  for (CodecPtr* const way : {&plan.codec, &plan.down}) {
    if (*way && (*way)->text() == "sign") *way = std::make_shared<BlockCoding>(BlockCodec::sign, 1U << 18);
  }
  return plan;
}

}  // namespace octavo
