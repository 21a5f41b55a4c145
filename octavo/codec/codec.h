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

/// How values become bytes, and back.
namespace octavo {

/// Of a text, the same on every machine.
OCTAVO_API std::uint64_t fingerprint_of(const std::string& text);

/// Consecutive elements.
struct Range {
  std::uint64_t first = 0;
  std::uint64_t count = 0;
};

/// The payload of `count` values, and the part of these values that a call is about.
struct PayloadPart {
  std::uint8_t* payload;  // Codec::payload_bytes(count) bytes at a multiple of 4, which the device reads and writes
  std::uint64_t count;
  Range part;  // begins at a multiple of the codec's granule; ends at one, or with the values
  /// For what all ranks draw alike: another one in every step and for every range, the same on all ranks.
  std::uint64_t key = 0;
};

/// Elements that a thread takes at least: less is not worth waking it.
inline constexpr std::uint64_t kGrainValues = 1U << 15;

/// Cuts a part at multiples of `granule`, the more the more threads there are (device/dispatch.h, for_parts), and calls
/// body(part, the number of its first element from that of `whole` on) for each.
OCTAVO_API void for_each_part(c10::Device device, std::uint64_t granule, const PayloadPart& whole,
                              const std::function<void(const PayloadPart& part, std::uint64_t first)>& body);

/// More elements than there are: the granule of a codec whose payloads cannot be cut.
inline constexpr std::uint64_t kUncut = 1ULL << 40;

/// What a schedule must know of a codec.
struct CodecTraits {
  std::uint64_t granule = kUncut;  // elements that are encoded and decoded together
  bool leaves_error = true;        // value - decoded, which may be fed back
  bool keeps_magnitude = true;     // false: the result is a vote, not an average
  bool packs = false;              // what travels of a payload depends on the values (Codec::pack)
  float learnt_share = 1.0F;       // of what is sent, what a memory of it learns: less than 1 where codes vary (DIANA)
  bool leaves_unsent = false;      // most values, which decode to 0
  bool needs_estimate = false;     // encode() needs EncodeInput::estimate, so a feedback that keeps one
  bool draws_places = false;  // which values are sent is drawn from PayloadPart::key, by each such codec its own way

  /// Whether each value comes as it is.
  bool is_exact() const { return !leaves_error && keeps_magnitude && learnt_share == 1.0F; }
};

/// A way to encode floats. Objects are immutable, and several threads may work on the parts of one payload. The bytes
/// depend on the input alone: not on the parts, the threads, the device or the instruction set.
///
/// Work is done on the device's current stream (on the CPU by the caller and torch's intra-op threads) and not waited
/// for. Each call throws Error unsupported for a device without kernels.
class OCTAVO_API Codec {
 public:
  virtual ~Codec() = default;
  Codec(const Codec&) = delete;
  Codec& operator=(const Codec&) = delete;

  /// As a plan writes it: "int4:128:stochastic".
  const std::string& text() const { return text_; }
  /// Of the text, the same on every machine.
  std::uint64_t fingerprint() const { return fingerprint_; }
  const CodecTraits& traits() const { return traits_; }

  /// Of a payload of `count` values, as encode() writes it, and the most that travels of it.
  virtual std::uint64_t payload_bytes(std::uint64_t count) const = 0;

  /// What travels of a payload. By default all of it; a codec whose traits say that it packs sends fewer bytes, as many
  /// as the values need. Both are done in the host's memory, by the calling thread and torch's intra-op threads, and
  /// return when they are done. `payload`: of all `count` values, at a multiple of 4; `packed`: at a multiple of 4,
  /// with room for payload_bytes(count). Returns the bytes that were written there.
  virtual std::uint64_t pack(const std::uint8_t* payload, std::uint64_t count, std::uint8_t* packed) const;
  /// The payload again, of which decode() makes the same values, from the first bytes of `packed`, that came over a
  /// wire: no more is read than there is. Returns how many bytes it took; none where pack() does not make such bytes.
  virtual std::optional<std::uint64_t> unpack(std::span<const std::uint8_t> packed, std::uint64_t count,
                                              std::uint8_t* payload) const;

  /// Of the values of a payload in the host's memory, how many receivers are told to take as they took them before.
  virtual std::uint64_t reused(const std::uint8_t* payload, std::uint64_t count) const;

  /// The codec of what ranks send to owners; this one is that of what owners send to all.
  virtual const Codec& upward() const { return *this; }

  /// The codec of what ranks send to owners that keep the sums to themselves: nothing is sent down.
  virtual const Codec& upward_only() const { return upward(); }

  /// The codecs of a warm-up, in order, each of which sends more than the next, and the last more than this one: for
  /// codecs that leave most values unsent, which harms training most at its beginning. Empty: there is none.
  virtual std::vector<std::shared_ptr<const Codec>> warm_up() const { return {}; }

  /// Encodes a part; `input` and `next_residual` (as in kernels/table.h; null: not wanted) begin at its first element.
  virtual void encode(c10::Device device, const EncodeInput& input, const PayloadPart& to,
                      rules::Residual* next_residual) const = 0;
  /// Decodes a part to `out`, or adds it there. Sets *nonfinite, which the device can write (reserve_on_host), to 1
  /// where a value is a NaN or an infinity; null: not wanted. Any bytes decode to something: what is out of bounds is
  /// NaN.
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
