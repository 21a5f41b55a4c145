// SPDX-License-Identifier: Apache-2.0
#include "octavo/codec/coding.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "octavo/device/dispatch.h"
#include "octavo/kernels/error.h"
#include "octavo/rules/bf16.h"
#include "octavo/rules/float_bits.h"

namespace octavo {

namespace {

/// Elements that a thread takes at least: less is not worth waking it.
constexpr std::uint64_t kGrainValues = 1U << 15;
/// Added to the magnitude of what is not finite, and of nothing else, it carries into the sign bit.
constexpr std::uint32_t kCarryIntoSign = rules::kSignMask - rules::kInfinityBits;

/// Calls body(first element, elements) over parts of whole blocks.
template <class Body>
void for_block_parts(c10::Device device, Format format, std::uint64_t count, Body body) {
  const auto grain = static_cast<std::int64_t>(std::max<std::uint64_t>(1, kGrainValues / format.block));
  for_parts(device, static_cast<std::int64_t>(format.blocks(count)), grain, [&](std::int64_t from, std::int64_t to) {
    const std::uint64_t first = static_cast<std::uint64_t>(from) * format.block;
    const std::uint64_t last = std::min(static_cast<std::uint64_t>(to) * format.block, count);
    body(first, last - first);
  });
}

/// Whether value_of(word) is finite for all words: one loop without branches, which the compiler vectorises, on all
/// threads.
template <class Word, class ValueOf>
bool all_finite(const std::uint8_t* bytes, std::uint64_t count, ValueOf value_of) {
  std::atomic<bool> finite = true;
  for_parts(c10::kCPU, static_cast<std::int64_t>(count), kGrainValues, [&](std::int64_t first, std::int64_t last) {
    std::uint32_t seen = 0;
    for (std::int64_t i = first; i < last; ++i) {
      Word word;
      std::memcpy(&word, bytes + static_cast<std::uint64_t>(i) * sizeof(Word), sizeof(Word));
      seen |= rules::magnitude_bits(value_of(word)) + kCarryIntoSign;
    }
    if (seen & rules::kSignMask) finite = false;
  });
  return finite;
}

}  // namespace

void encode(c10::Device device, Format format, const EncodeInput& input, std::uint64_t count, Payload payload,
            rules::Residual* next_residual) {
  const LaunchScope scope(device);
  EncodeKernel* const kernel = (scope.kernels().*traits(format.codec).kernels).encode;
  for_block_parts(device, format, count, [&](std::uint64_t first, std::uint64_t part) {
    kernel(scope.queue(), input.from(first), part, format.block, format.from(payload, first),
           next_residual ? next_residual + first : nullptr);
  });
}

void decode(c10::Device device, Format format, Payload payload, std::uint64_t count, Store store, float* out) {
  const LaunchScope scope(device);
  DecodeKernel* const kernel = (scope.kernels().*traits(format.codec).kernels).decode;
  for_block_parts(device, format, count, [&](std::uint64_t first, std::uint64_t part) {
    kernel(scope.queue(), format.from(payload, first), part, format.block, store, out + first);
  });
}

bool payload_is_finite(Format format, const std::uint8_t* bytes, std::uint64_t count) {
  const auto of_float = [](std::uint32_t word) { return rules::from_bits(word); };
  const auto of_bf16 = [](std::uint16_t word) { return rules::from_bf16({word}); };
  if (traits(format.codec).scaled) return all_finite<std::uint32_t>(bytes, format.blocks(count), of_float);
  switch (format.codec) {
    case Codec::fp32: return all_finite<std::uint32_t>(bytes, count, of_float);
    case Codec::bf16: return all_finite<std::uint16_t>(bytes, count, of_bf16);
    default: fail(ErrorCode::internal, "codec.payload_is_finite", "no rule for codec ", traits(format.codec).name);
  }
}

}  // namespace octavo
