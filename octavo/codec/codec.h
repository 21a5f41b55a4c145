// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "octavo/export.h"
#include "octavo/kernels/operands.h"
#include "octavo/kernels/round_up.h"

/// How values become bytes, and back.
namespace octavo {

/// Returns a hash of the text, the same on every machine.
OCTAVO_API std::uint64_t fingerprint_of(const std::string& text);

/// Consecutive elements.
struct Range {
  std::uint64_t first = 0;
  std::uint64_t count = 0;
};

/// Returns `bytes` rounded up to whole words of 4 bytes, at which payloads begin.
constexpr std::uint64_t whole_words(std::uint64_t bytes) { return round_up(bytes, 4); }

/// The payload of `count` values, and the part of these values that a call is about.
struct PayloadPart {
  std::uint8_t* payload;  // Codec::payload_bytes(count) bytes at a multiple of 4; the device reads and writes them
  std::uint64_t count;
  Range part;  // begins at a multiple of the codec's granule; ends at one, or with the values
  /// The key for what all ranks draw alike: the same on all ranks, and different in every step and for every range.
  std::uint64_t key = 0;
};

/// The fewest elements that a thread takes: starting it for fewer is not worth the time.
inline constexpr std::uint64_t kGrainValues = 1U << 15;

/// Cuts a part at multiples of `granule`, into more parts where there are more threads (device/dispatch.h, for_parts).
/// Calls body(part, the number of its first element counted from that of `whole`) for each.
OCTAVO_API void for_each_part(c10::Device device, std::uint64_t granule, const PayloadPart& whole,
                              const std::function<void(const PayloadPart& part, std::uint64_t first)>& body);

/// The granule of a codec whose payloads cannot be cut: more elements than any tensor has.
inline constexpr std::uint64_t kUncut = 1ULL << 40;

/// What a schedule must know about a codec.
struct CodecTraits {
  std::uint64_t granule = kUncut;  // elements that are encoded and decoded together
  bool leaves_error = true;        // decoded values differ from the values; the error may be fed back
  bool keeps_magnitude = true;     // false: the result is a vote, not an average
  bool packs = false;              // how many bytes of a payload are sent depends on the values (Codec::pack)
  float learnt_share = 1.0F;       // share of what is sent that a memory learns: less than 1 where codes vary (DIANA)
  bool leaves_unsent = false;      // most values are not sent, and decode to 0
  bool needs_estimate = false;     // encode() needs EncodeInput::estimate, and so a feedback that keeps one
  bool rounds_at_random = false;   // codes depend on EncodeInput::rounding_key
  bool weighs_residual = false;    // encode() treats EncodeInput::residual otherwise than the values
  bool draws_places = false;       // draws what it sends from PayloadPart::key: sums of two such codecs do not match

  /// Whether each value arrives unchanged.
  bool is_exact() const { return !leaves_error && keeps_magnitude && learnt_share == 1.0F; }
};

/// A way to encode floats. Objects are immutable, and several threads may work on the parts of one payload. The bytes
/// depend only on the input: not on the parts, the threads, the device or the instruction set.
///
/// Work is done on the device's current stream (on the CPU by the caller and torch's intra-op threads) and not waited
/// for. Each call throws Error unsupported for a device without kernels.
class OCTAVO_API Codec {
 public:
  virtual ~Codec() = default;
  Codec(const Codec&) = delete;
  Codec& operator=(const Codec&) = delete;

  /// The codec's text as a plan writes it: "int4:128:stochastic".
  const std::string& text() const { return text_; }
  /// The hash of the text, the same on every machine.
  std::uint64_t fingerprint() const { return fingerprint_; }
  const CodecTraits& traits() const { return traits_; }

  /// The bytes of a payload of `count` values as encode() writes it, and the most that are sent of it.
  virtual std::uint64_t payload_bytes(std::uint64_t count) const = 0;

  /// Writes to `packed` what is sent of a payload, and returns the number of bytes written. By default that is all of
  /// it. A codec whose traits say that it packs sends fewer bytes, as many as the values need. `payload` is of all
  /// `count` values, at a multiple of 4. `packed` is at a multiple of 4, too, with room for payload_bytes(count).
  /// pack() and unpack() work in the host's memory, on the calling thread and torch's intra-op threads, and return when
  /// they are done.
  virtual std::uint64_t pack(const std::uint8_t* payload, std::uint64_t count, std::uint8_t* packed) const;
  /// Restores a payload, from which decode() makes the same values, from the first bytes of `packed`, which were
  /// received: never reads beyond their end. Returns how many bytes it took; none where pack() does not make such
  /// bytes.
  virtual std::optional<std::uint64_t> unpack(std::span<const std::uint8_t> packed, std::uint64_t count,
                                              std::uint8_t* payload) const;

  /// How many values of a payload in the host's memory receivers are told to take as they took them before.
  virtual std::uint64_t reused(const std::uint8_t* payload, std::uint64_t count) const;

  /// The codec of what ranks send to owners; this codec is for what owners send to all.
  virtual const Codec& upward() const { return *this; }

  /// The codec of what ranks send to owners that keep the sums to themselves, so that nothing is sent back.
  virtual const Codec& upward_only() const { return upward(); }

  /// The codecs of a warm-up, in order: each sends more than the next, and the last more than this one. For codecs that
  /// leave most values unsent, which harms training most at its beginning. Empty: there is no warm-up.
  virtual std::vector<std::shared_ptr<const Codec>> warm_up() const { return {}; }

  /// Encodes a part. `input` and `next_residual` (as in kernels/table.h; null: not wanted) begin at its first element.
  virtual void encode(c10::Device device, const EncodeInput& input, const PayloadPart& to,
                      rules::Residual* next_residual) const = 0;
  /// Decodes a part to `out`, or adds it there. Sets *nonfinite, which the device can write (reserve_on_host), to 1
  /// where a value is a NaN or an infinity; null: not wanted. Any bytes can be decoded without access out of bounds:
  /// what no encoder writes becomes some number or a NaN, or is left out where it is a place that does not exist.
  virtual void decode(c10::Device device, const PayloadPart& from, Store store, float* out,
                      std::uint32_t* nonfinite) const = 0;

 protected:
  Codec(std::string text, CodecTraits traits);

 private:
  std::string text_;
  std::uint64_t fingerprint_;
  CodecTraits traits_;
};

using CodecPtr = std::shared_ptr<const Codec>;

}  // namespace octavo
