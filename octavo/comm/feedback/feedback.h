// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "octavo/codec/codec.h"
#include "octavo/codec/codec_text.h"
#include "octavo/codec/linear_map.h"
#include "octavo/comm/feedback_memory.h"
#include "octavo/comm/state/state_store.h"
#include "octavo/export.h"

/// What is remembered from step to step, so that what codes leave out of a gradient is not lost.
namespace octavo {

/// A function that returns what is owed of a range of a parameter's elements: [range.count], float32, a new tensor on
/// any device.
using OwedByRange = std::function<at::Tensor(Range)>;

/// A kind of memory, as a plan names it. Immutable.
class OCTAVO_API Feedback {
 public:
  virtual ~Feedback() = default;
  /// Returns the text of this kind as a plan writes it after a '+', for example "ef".
  virtual std::string text() const = 0;
  virtual std::vector<Role> roles() const = 0;
  /// Refuses a codec with which this kind makes no sense.
  virtual void require_fit(const CodecText& text, const Codec& codec) const = 0;
  /// Whether the codec of one way may be exact. This kind then does nothing on that way.
  virtual bool fits_exact_way() const { return false; }
  /// Refuses a codec that must know values and residual apart, for kinds that give it their sum.
  static void require_one_sum_fits(const CodecText& text, const Codec& codec);
  /// Refuses the codecs of the two ways where they make no sense together with this kind.
  void require_ways_fit(const CodecText& text, const Codec& up, const Codec& down) const;
  /// Refuses a linear map, or leaves the feedback to the map, which does it in its own way (LinearMap).
  virtual void require_fit(const CodecText& text, const LinearMap& map) const;
  /// Whether both ends of a way keep an estimate of the values, which EncodeInput then has.
  virtual bool keeps_estimates() const { return false; }
  /// Whether this kind works where owners keep the sums to themselves (Contribution::owner_keeps_sum).
  virtual bool fits_kept_sums() const { return false; }
  /// Whether this kind keeps account of a rank's own values where these are encoded, too (Contribution::codes_own).
  virtual bool keeps_own_residual() const { return false; }
  /// Whether this kind's memory needs the power of all of a rank's gradient (FeedbackMemory::needs_whole_power).
  virtual bool needs_whole_power() const { return false; }
  /// Makes the memory of a parameter of the store, which must outlive it.
  virtual std::shared_ptr<FeedbackMemory> remember(StateStore& store, std::size_t parameter) const = 0;

  /// Returns the momentum that is part of this kind. The optimizer must then have none, and exempt parameters need this
  /// momentum, too.
  virtual std::optional<double> momentum() const { return std::nullopt; }
  /// Returns the same kind with another momentum; null where there is none.
  virtual std::shared_ptr<const Feedback> with_momentum(double /*momentum*/) const { return nullptr; }
  /// Returns the same kind with a decay: what a rank could not send is multiplied by this factor, above 0 and at most
  /// 1, from step to step. Null where this makes no sense.
  virtual std::shared_ptr<const Feedback> with_decay(double /*decay*/) const { return nullptr; }
  /// Whether this kind uses Contribution::owed_share.
  virtual bool knows_owed_share() const { return false; }
  /// A function that returns what is kept of a parameter, by role; undefined: nothing.
  using KeptByRole = std::function<at::Tensor(const Role&)>;
  /// Returns what will be added to a rank's next contribution to the averages. `kept`: what that rank of that world
  /// keeps; its memory is read when a range is asked for. Null: there is nothing, or what is kept is not added as it
  /// is.
  virtual OwedByRange owed(const KeptByRole& kept, const ParameterInfo& parameter, int rank, int world_size) const;
  /// Returns the same kind with each rank's gradient of a tensor scaled down to a norm; null where this makes no sense.
  virtual std::shared_ptr<const Feedback> clipped(double /*norm*/) const { return nullptr; }
};

using FeedbackPtr = std::shared_ptr<const Feedback>;

/// Makes the kind that a piece of a plan, without its '+', names; null where it names none.
OCTAVO_API FeedbackPtr make_feedback(const CodecText& text, std::string_view piece);

/// Return the names and the roles of all kinds.
OCTAVO_API std::vector<std::string> feedback_names();
OCTAVO_API std::vector<Role> feedback_roles();

}  // namespace octavo
