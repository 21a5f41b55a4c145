// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <memory>

#include "octavo/codec/codec.h"
#include "octavo/export.h"

/// What schedules know of error feedback: they give it the parts of tensors that are sent. Its kinds are in feedback/.
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

}  // namespace octavo
