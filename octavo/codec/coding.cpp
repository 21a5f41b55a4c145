// SPDX-License-Identifier: Apache-2.0
#include "octavo/codec/coding.h"

#include <algorithm>
#include <cstring>

#include "octavo/device/dispatch.h"
#include "octavo/kernels/error.h"
#include "octavo/rules/bf16.h"
#include "octavo/rules/float_bits.h"

namespace octavo {

namespace {

/// Elements that a thread takes at least: less is not worth waking it.
constexpr std::uint64_t kGrain = 1U << 15;

/// Calls body(first element, elements) over parts of whole blocks.
template <class Body>
void for_block_parts(c10::Device device, Format format, std::uint64_t count, Body body) {
  const auto grain = static_cast<std::int64_t>(std::max<std::uint64_t>(1, kGrain / format.block));
  for_parts(device, static_cast<std::int64_t>(format.blocks(count)), grain, [&](std::int64_t from, std::int64_t to) {
    const std::uint64_t first = static_cast<std::uint64_t>(from) * format.block;
    const std::uint64_t last = std::min(static_cast<std::uint64_t>(to) * format.block, count);
    body(first, last - first);
  });
}

template <class Value, class Finite>
bool all_finite(const std::uint8_t* bytes, std::uint64_t count, Finite finite) {
  for (std::uint64_t i = 0; i < count; ++i) {
    Value value;
    std::memcpy(&value, bytes + i * sizeof(Value), sizeof(Value));
    if (!finite(value)) return false;
  }
  return true;
}

}  // namespace

void encode(c10::Device device, Format format, const EncodeInput& input, std::uint64_t count, Payload payload,
            rules::Residual* next_residual) {
  const LaunchScope scope(device);
  const EncodeKernel kernel = (scope.kernels().*traits(format.codec).kernels).encode;
  for_block_parts(device, format, count, [&](std::uint64_t first, std::uint64_t part) {
    kernel(scope.queue(), input.from(first), part, format.block, format.from(payload, first),
           next_residual ? next_residual + first : nullptr);
  });
}

void decode(c10::Device device, Format format, Payload payload, std::uint64_t count, Store store, float* out) {
  const LaunchScope scope(device);
  const DecodeKernel kernel = (scope.kernels().*traits(format.codec).kernels).decode;
  for_block_parts(device, format, count, [&](std::uint64_t first, std::uint64_t part) {
    kernel(scope.queue(), format.from(payload, first), part, format.block, store, out + first);
  });
}

bool payload_is_finite(Format format, const std::uint8_t* bytes, std::uint64_t count) {
  const auto finite = [](float value) { return rules::is_finite(value); };
  if (traits(format.codec).scaled) return all_finite<float>(bytes, format.blocks(count), finite);
  switch (format.codec) {
    case Codec::fp32: return all_finite<float>(bytes, count, finite);
    case Codec::bf16:
      return all_finite<rules::Bf16>(bytes, count, [&](rules::Bf16 value) { return finite(rules::from_bf16(value)); });
    default: fail(ErrorCode::internal, "codec.payload_is_finite", "no rule for codec ", traits(format.codec).name);
  }
}

}  // namespace octavo
