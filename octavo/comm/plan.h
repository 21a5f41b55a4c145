// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "octavo/codec/codec.h"
#include "octavo/codec/linear_map.h"
#include "octavo/codec/registry.h"
#include "octavo/comm/feedback/feedback.h"
#include "octavo/export.h"

namespace octavo {

/// How a parameter's gradient crosses the wire: a codec, whether errors are fed back, and with what it begins.
///
///   dense             float32 (or the gradient's own dtype), the process group's own all-reduce
///   bf16, fp16        16 bits per value on the wire, added in float32
///   bf16:lossless     the same values in about 11 bits, because few exponents are frequent; fp16:lossless in about 14
///   fp8, fp8-e5m2     8 bits per value, floats (e4m3, e5m2), one scale per block of 256
///   e3m0              4 bits per value, powers of two, one scale per block of 64
///   int8 to int2      8 to 2 bits per value, one scale per block (256 for int8, 128 for int7, 64 for the others)
///   sign2, ternary    2 bits per value, one scale per block of 256
///   sign              1 bit per value, one scale per block of 256
///   topk:0.01         the largest hundredth of what an owner has of each tensor, in float32, and their places
///   topk:64/4096      the largest 64 of every 4096; a last part names the codec of the values: topk:64/4096:sign
///   threshold:10      the values above ten times the root of the gradient's mean square, at most a hundredth of them,
///                     and their places; a last part names the codec of the values: threshold:10:sign
///   randomk:0.01      one of every 100 at places that all ranks draw alike, so that of places nothing is sent;
///                     randomk:0.01:unbiased multiplies it by 100; a last part names the codec of the values
///   powersgd:4        a matrix as the product of two of rank 4, which travel one after the other in float32;
///                     powersgd:4:alternating sends one of them a step, in turn
///   sketch:0.1        a count sketch of a tenth as many cells as values, from which the largest values are estimated,
///                     an eighth as many as cells; sketch:0.1:0.01 takes a hundredth of the values, and with a last
///                     part, as in sketch:0.1:exact, their exact mean is sent in a second round
///   lsh:int4          another codec, here int4, of which values that have hardly changed are not sent: where a hash of
///                     16384 of them says so receivers take for them what they did before (codec/lsh.h); lsh:0.4:int4
///                     sets the share of the hash's bits that may differ (0.1). With +ef21, which it has where nothing
///                     else is said, or +econtrol. Experimental
///   sign-vote         2 bits a value, +1, -1 or 0: a rank's sign up, the majority's (0 for a tie) down, no magnitude
///
/// `+ef` adds error feedback (all but dense, sign-vote and unbiased codecs); with `+ef:DECAY`, above 0 and at most 1
/// (which `+ef` means), what a rank could not send decays from step to step, as in topk:64/4096:sign+ef:0.95
/// (comm/feedback/ef14.h). `+ef:8bit` and `+ef:DECAY:8bit` keep it in 8 bits instead of bfloat16, not for linear maps.
/// `:N` sets the block, in elements, `:stochastic` rounds codes without bias (int2 to int8): `sign:1024+ef`,
/// `int8:stochastic`, `int4:128:stochastic+ef`. In its place there may be
///
///   delta+CODEC       or CODEC+ef21: the difference to what the receivers took for the value before
///                     (comm/feedback/ef21.h): delta+int4, delta+topk:0.01, delta+randomk:0.01:unbiased
///   CODEC+econtrol    such differences, and error feedback of what the receivers' estimates missed, a hundredth of it
///                     in each step; +econtrol:0.1 sets the part (comm/feedback/econtrol.h)
///   CODEC+loco        a moving average of past errors in 8 bits, which begins anew every 1024 steps;
///                     +loco:0.8:1024 sets the share of the past and the period (comm/feedback/loco.h)
///   dgc:0.001         or topk:0.001+dgc: momentum before compression, under an optimizer without momentum
///                     (comm/feedback/dgc.h); +dgc:M sets it (0.9), +clip:N clips local gradients: dgc:0.01+clip:1;
///                     with rules all parameters have it: dgc:0.001;embed.*=dense+dgc
///   sketch:0.1+fetchsgd  momentum and error feedback inside the sketch, under an optimizer without momentum
///                     (comm/feedback/fetchsgd.h); +fetchsgd:M sets it (0.9)
///   auto              for each bucket, by measurement (comm/auto_plan.h), one of dense, bf16, int8+ef and int4+ef,
///                     which train as dense does (docs/quality.md); auto:sign may also take sign+ef, which needs an
///                     optimizer made for it or a user's consent; auto:int8 and auto:bf16 end there
///
/// `+down:CODEC` names another codec for what owners send to all; the first one is then that of what ranks send to
/// owners: int4+down:int8+ef, topk:0.01+down:int8+ef, sign+down:dense. Errors are fed back on each way that has any.
/// With FSDP2's shards, of which owners keep the sums, nothing goes down. Votes and linear maps have no other codec
/// down.
///
/// `+hits` (topk, threshold, randomk; with +ef or without feedback) averages over hits: owners divide each sum by the
/// number of ranks that sent a value there, and not by that of all ranks, as in topk:64/4096:sign+ef:0.95+hits. What
/// one rank of many sends then counts whole (rules/hits.h). An owner's own values are sent as the others' are: as
/// codes, to itself.
///
/// Codecs that were registered (codec/registry.h) are plans by their names. `+warmup:N` (topk, threshold, randomk)
/// sends a quarter of the values in the first of N steps of the run, then a sixteenth, and so on:
/// `topk:0.01+ef+warmup:200`. Of powersgd and sketch these steps are dense.
struct OCTAVO_API ParameterPlan {
  struct WarmUp {
    std::uint64_t steps;
    std::vector<CodecPtr> codecs = {}, down = {};  // for as many steps each; empty: that of the plan
  };

  CodecPtr codec;                         // of both ways; of the images where there is a map
  CodecPtr down;                          // another one for what owners send to all; null: the same
  LinearMapPtr map;                       // null: none
  FeedbackPtr feedback;                   // null: none
  bool over_hits = false;                 // +hits
  bool codes_own = false;                 // Contribution::codes_own
  std::shared_ptr<const WarmUp> warm_up;  // null: none
  /// auto: the plans to choose from, dense first and each with fewer bits than the one before; null otherwise. The
  /// codec is then dense, and the feedback +ef: a choice without it sends what is owed first.
  std::shared_ptr<const std::vector<ParameterPlan>> choices;

  /// dense
  ParameterPlan();
  /// `plan`: the whole plan's text, for messages.
  static ParameterPlan parse(std::string_view plan, std::string_view text);
  std::string text() const;

  bool dense() const;
  /// Whether a codec compares values with what was sent before (CodecTraits::needs_estimate).
  bool compares() const { return codec->traits().needs_estimate || (down && down->traits().needs_estimate); }
  bool votes() const { return !codec->traits().keeps_magnitude; }
  bool fits_hits() const;
  /// That which the plan keeps in the optimizer's place; none where the optimizer keeps it.
  std::optional<double> momentum() const { return feedback ? feedback->momentum() : std::nullopt; }
  /// Of what ranks send to owners, and of what owners send to all.
  struct Codecs {
    const Codec *up, *down;
  };
  /// In a step, counted from 1.
  Codecs at(std::uint64_t step) const;
  /// Where owners keep the sums to themselves: `down` is then what these become there.
  Codecs kept_at(std::uint64_t step) const;
  /// Null: none. A warm-up of a map is dense.
  const LinearMap* map_at(std::uint64_t step) const;

  /// The plan for averaging momenta under a frozen variance, where one scale per tensor serves better than one per
  /// block (in trials +0.4 % of loss against +2 %): a sign plan whose block was not chosen gets blocks of 2^18
  /// elements.
  ParameterPlan for_momentum() const;

 private:
  static ParameterPlan automatic(const CodecText& text);
  /// What a text says after a '+'.
  void add(const CodecText& text, std::string_view part);
  void set_feedback(const CodecText& text, FeedbackPtr wanted);
  void set_down(const CodecText& text, std::string_view codec);
  /// What depends on all that the text says.
  void complete(const CodecText& text);
  void require_legal(const CodecText& text) const;
  void require_fits_hits(const CodecText& text) const;
  const Codec& way_at(std::uint64_t step, std::vector<CodecPtr> WarmUp::* stages, const CodecPtr& after) const;
};

/// The plan of a model: that of all parameters, and rules for some, of which the first counts that fits the name:
/// `int4+ef;lm_head.*=int8+ef;*embed*=dense`. Patterns are those of fnmatch(3).
struct OCTAVO_API Plan : ParameterPlan {
  struct Rule {
    std::string pattern;
    ParameterPlan plan;
    bool fits(const std::string& parameter) const;
  };
  std::vector<Rule> rules;

  /// Throws Error invalid_argument for a text that makes no plan, saying what would.
  static Plan parse(std::string_view text);
  std::string text() const;
  const ParameterPlan& of(const std::string& parameter) const;
  /// Throws Error invalid_argument where a rule fits none of these parameters.
  void require_rules_fit(const std::vector<std::string>& parameters) const;
  /// Of some parameter.
  bool votes() const;
  Plan for_momentum() const;
  /// Where it keeps a momentum: with another one for all parameters.
  Plan with_momentum(double momentum) const;
  /// Where it has `+ef`: with another decay for all parameters. Throws Error invalid_argument for a decay that is not
  /// above 0 and at most 1, and where it has `+ef` nowhere.
  Plan with_decay(double decay) const;
  /// Where `+ef` keeps what codes leave out, ranks encode what they own themselves, too. For ranks that go on without
  /// what they owe (Outer): the code on the way down drops a part of an owner's exact values, and an owner that did not
  /// count it as owed would make the same progress again in every round. Rounds of signs end 3 % lower with it
  /// (docs/quality.md), and long rounds of topk, which drops most values, diverge without it.
  Plan coding_own() const;
  /// With `+hits` for all parameters that take it. Throws Error invalid_argument where none does.
  Plan averaged_over_hits() const;
};

}  // namespace octavo
