// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/Device.h>

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
#include "octavo/comm/state/state_store.h"
#include "octavo/export.h"

/// What is remembered from step to step, so that what codes leave out of a gradient is not lost.
namespace octavo {

struct Contribution;

/// Up is from a rank to the owner of a range, down from the owner to all ranks.
enum class Way { up, down };

/// A part of a range of a tensor as one rank encodes it and others decode it.
struct SentPart {
  Way way;
  int sender;
  const Codec* codec;
  Range range;          // of the tensor; it has one owner
  PayloadPart payload;  // of the range
  c10::Device device;

  std::uint64_t first() const { return range.first + payload.part.first; }  // in the tensor
  std::uint64_t count() const { return payload.part.count; }
};

/// A function that returns what is owed of a range of a parameter's elements: [range.count], float32, a new tensor on
/// any device.
using OwedByRange = std::function<at::Tensor(Range)>;

/// What this rank remembers of one tensor. This base class remembers nothing: what codes leave out is lost.
///
/// begin() is called once for every bucket with the tensor. encode() and decode() are called for its parts, on several
/// threads at once, on the device's current stream. Each part that this rank sends up (to itself, too, where
/// Contribution::codes_own says so), receives, sends down and gets back comes exactly once. What is written belongs to
/// the step, and is committed or rolled back with it (StateStore).
class OCTAVO_API FeedbackMemory {
 public:
  FeedbackMemory() = default;
  virtual ~FeedbackMemory() = default;
  FeedbackMemory(const FeedbackMemory&) = delete;
  FeedbackMemory& operator=(const FeedbackMemory&) = delete;

  /// `power`: the mean square of this rank's gradient; of all of its elements where needs_whole_power().
  virtual void begin(c10::Device device, const Contribution& tensor, float power);
  /// Encodes a part. `input` begins at the part and lacks what is remembered.
  virtual void encode(const SentPart& part, const EncodeInput& input);
  /// Decodes a part to `out`, which begins at the part. `store` and `nonfinite`: as in Codec::decode.
  virtual void decode(const SentPart& part, Store store, float* out, std::uint32_t* nonfinite);

  /// Whether a rank without peers encodes, too, because the memory remembers more than errors.
  virtual bool acts_alone() const { return false; }
  virtual bool needs_whole_power() const { return false; }
  /// Returns how many elements of a range are encoded together, besides the codec's granule.
  virtual std::uint64_t granule() const { return 1; }
  /// Returns the digest of what the ranks must agree on before a step.
  virtual std::uint64_t digest() const { return 0; }

  static const std::shared_ptr<FeedbackMemory>& none();
};

/// A kind of memory, as a plan names it. Immutable.
class OCTAVO_API Feedback {
 public:
  virtual ~Feedback() = default;
  /// Returns the text of this kind as a plan writes it after a '+', for example "ef".
  virtual std::string text() const = 0;
  virtual std::vector<Role> roles() const = 0;
  /// Refuses a codec with which this kind makes no sense.
  virtual void require_fit(const CodecText& plan, const Codec& codec) const = 0;
  /// Whether the codec of one way may be exact. This kind then does nothing on that way.
  virtual bool fits_exact_way() const { return false; }
  /// Refuses a codec that must know values and residual apart, for kinds that give it their sum.
  static void require_one_sum_fits(const CodecText& plan, const Codec& codec);
  /// Refuses the codecs of the two ways where they make no sense together with this kind.
  void require_ways_fit(const CodecText& plan, const Codec& up, const Codec& down) const;
  /// Refuses a linear map, or leaves the feedback to the map, which does it in its own way (LinearMap).
  virtual void require_fit(const CodecText& plan, const LinearMap& map) const;
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
OCTAVO_API FeedbackPtr make_feedback(const CodecText& plan, std::string_view piece);

/// Return the names and the roles of all kinds.
OCTAVO_API std::vector<std::string> feedback_names();
OCTAVO_API std::vector<Role> feedback_roles();

}  // namespace octavo
