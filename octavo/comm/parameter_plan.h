// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "octavo/codec/codec.h"
#include "octavo/codec/codec_text.h"
#include "octavo/codec/linear_map.h"
#include "octavo/comm/feedback/feedback.h"
#include "octavo/export.h"

namespace octavo {

/// How a parameter's gradient is sent: by which codec, with which error feedback, and with which warm-up.
///
///   dense             the gradient's own dtype (float32 where its bucket has other plans, too), by the all-reduce of
///                     the wire's back end (comm/wire.h)
///   bf16, fp16        16 bits per value on the wire, added in float32
///   bf16:lossless     the same values in about 11 bits, because few exponents are frequent; fp16:lossless in about 14
///   fp8, fp8-e5m2     8 bits per value, floats (e4m3, e5m2), one scale per block of 256
///   e3m0              4 bits per value, powers of two, one scale per block of 64
///   int8 to int2      8 to 2 bits per value, one scale per block (256 for int8, 128 for int7, 64 for the others)
///   sign2, ternary    2 bits per value, one scale per block of 256
///   sign              1 bit per value, one scale per block of 256
///   topk:0.01         the largest hundredth of the values of an owner's range of each tensor, in float32, and their
///                     indices
///   topk:64/4096      the largest 64 of every 4096; a last part names the codec of the values: topk:64/4096:sign
///   threshold:10      the values above ten times the root of the gradient's mean square, at most a hundredth of them,
///                     and their indices; a last part names the codec of the values: threshold:10:sign
///   randomk:0.01      one of every 100 values at indices that all ranks draw alike, so that no indices are sent;
///                     randomk:0.01:unbiased multiplies it by 100; a last part names the codec of the values
///   powersgd:4        a matrix as the product of two of rank 4, which are sent one after the other in float32;
///                     powersgd:4:alternating sends one of them per step, in turn
///   sketch:0.1        a count sketch with a tenth as many cells as there are values. The largest values are estimated
///                     from it, an eighth as many as there are cells; sketch:0.1:0.01 takes a hundredth of the values.
///                     With a last part, as in sketch:0.1:exact, their exact mean is sent in a second round
///   lsh:int4          another codec, here int4, but values that have hardly changed are not sent: where a hash of
///                     16384 values says so, receivers take for them what they took before (codec/lsh.h). lsh:0.4:int4
///                     sets the share of the hash's bits that may differ (default: 0.1). It is used with +ef21 (the
///                     default) or +econtrol. Experimental
///   sign-vote         2 bits per value, +1, -1 or 0: a rank sends the sign of its value up, the owner sends the
///                     majority's sign (0 for a tie) down; magnitudes are not sent
///
/// `+ef` adds error feedback (to all codecs but dense, sign-vote and unbiased ones). With `+ef:DECAY`, above 0 and at
/// most 1 (the default), what a rank could not send decays from step to step, as in topk:64/4096:sign+ef:0.95
/// (comm/feedback/ef14.h). `+ef:8bit` and `+ef:DECAY:8bit` keep it in 8 bits instead of bfloat16; linear maps do not
/// take them. `:N` sets the block, in elements. `:stochastic` rounds codes without bias (int2 to int8): `sign:1024+ef`,
/// `int8:stochastic`, `int4:128:stochastic+ef`. Instead of a codec with `+ef` there may be
///
///   delta+CODEC       or CODEC+ef21: the difference to what the receivers took for the value before
///                     (comm/feedback/ef21.h): delta+int4, delta+topk:0.01, delta+randomk:0.01:unbiased
///   CODEC+econtrol    such differences, and error feedback of what the receivers' estimates missed, a hundredth of it
///                     in each step; +econtrol:0.1 sets this part (comm/feedback/econtrol.h)
///   CODEC+loco        a moving average of past errors in 8 bits, which begins anew every 1024 steps;
///                     +loco:0.8:1024 sets the share of the past and the period (comm/feedback/loco.h)
///   dgc:0.001         or topk:0.001+dgc: momentum before compression, for an optimizer without momentum
///                     (comm/feedback/dgc.h); +dgc:M sets the momentum (default: 0.9), +clip:N clips local gradients:
///                     dgc:0.01+clip:1; with rules, all parameters must have it: dgc:0.001;embed.*=dense+dgc
///   sketch:0.1+fetchsgd  momentum and error feedback inside the sketch, for an optimizer without momentum
///                     (comm/feedback/fetchsgd.h); +fetchsgd:M sets the momentum (default: 0.9)
///   auto              for each bucket, by measurement (comm/auto_plan.h), one of dense, bf16, int8+ef and int4+ef,
///                     which all train as dense does (docs/quality.md); auto:sign may also take sign+ef, which needs an
///                     optimizer made for it or a user's consent; auto:int8 and auto:bf16 end the list there
///
/// `+down:CODEC` names another codec for what owners send to all; the first codec is then only for what ranks send to
/// owners: int4+down:int8+ef, topk:0.01+down:int8+ef, sign+down:dense. Errors are fed back on each way that has any.
/// With FSDP2's shards nothing is sent down, because owners keep the sums. Votes and linear maps take no `+down`.
///
/// `+hits` (topk, threshold, randomk; with +ef or without feedback) averages over hits: an owner divides each sum by
/// the number of ranks that sent a value there, not by the number of all ranks, as in topk:64/4096:sign+ef:0.95+hits. A
/// value that one rank of many sends then counts in full (rules/hits.h). An owner encodes its own values, too, and adds
/// up what they decode to.
///
/// Codecs that were registered (codec/registry.h) are plans by their names. `+warmup:N` (topk, threshold, randomk)
/// sends a quarter of the values in the first of N steps of the run, then a sixteenth, and so on:
/// `topk:0.01+ef+warmup:200`. With powersgd and sketch these steps are dense.
struct OCTAVO_API ParameterPlan {
  struct WarmUp {
    std::uint64_t steps;
    std::vector<CodecPtr> codecs = {}, down = {};  // each for an equal share of the steps; empty: the plan's codec
  };

  CodecPtr codec;                         // of both ways; of the images where there is a map
  CodecPtr down;                          // the codec of what owners send to all, if it is another one; null: `codec`
  LinearMapPtr map;                       // null: none
  FeedbackPtr feedback;                   // null: none
  bool over_hits = false;                 // +hits
  bool codes_own = false;                 // Contribution::codes_own
  std::shared_ptr<const WarmUp> warm_up;  // null: none
  /// The plans that auto chooses from, dense first and each with fewer bits than the one before; null without auto.
  /// With auto the codec is dense and the feedback is +ef, because a choice without feedback sends what is owed first.
  std::shared_ptr<const std::vector<ParameterPlan>> choices;

  /// Makes the plan `dense`.
  ParameterPlan();
  /// Parses the plan of one parameter. `plan`: the whole plan's text, for messages.
  static ParameterPlan parse(std::string_view plan, std::string_view text);
  std::string text() const;

  bool dense() const;
  /// Whether a codec compares values with what was sent before (CodecTraits::needs_estimate).
  bool compares() const { return codec->traits().needs_estimate || (down && down->traits().needs_estimate); }
  bool votes() const { return !codec->traits().keeps_magnitude; }
  bool fits_hits() const;
  /// Returns the momentum that the plan keeps in the optimizer's place; none where the optimizer keeps it.
  std::optional<double> momentum() const { return feedback ? feedback->momentum() : std::nullopt; }
  /// The codecs of what ranks send to owners, and of what owners send to all.
  struct Codecs {
    const Codec *up, *down;
  };
  /// Returns the codecs of a step, counted from 1.
  Codecs at(std::uint64_t step) const;
  /// Returns the codecs of a step where owners keep the sums to themselves: `down` is then what the sums become there.
  Codecs kept_at(std::uint64_t step) const;
  /// Returns the linear map of a step; null: there is none. In the warm-up of a map gradients are dense.
  const LinearMap* map_at(std::uint64_t step) const;

  /// Returns the plan for averaging momenta under a frozen variance. There one scale per tensor serves better than one
  /// per block (in trials +0.4 % of loss against +2 %), so a sign plan whose block was not chosen gets blocks of 2^18
  /// elements.
  ParameterPlan for_momentum() const;

 private:
  static ParameterPlan automatic(const CodecText& text);
  /// Adds what a text says after a '+'.
  void add(const CodecText& text, std::string_view part);
  void set_feedback(const CodecText& text, FeedbackPtr wanted);
  void set_down(const CodecText& text, std::string_view codec);
  /// Completes and checks the plan when all of its text is read.
  void complete(const CodecText& text);
  void require_legal(const CodecText& text) const;
  void require_fits_hits(const CodecText& text) const;
  const Codec& way_at(std::uint64_t step, std::vector<CodecPtr> WarmUp::* stages, const CodecPtr& after) const;
};

}  // namespace octavo
