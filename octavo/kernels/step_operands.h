// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "octavo/rules/bf16.h"
#include "octavo/rules/counter_random.h"
#include "octavo/rules/fp16.h"
#include "octavo/rules/state_codes.h"

/// What the step of an optimizer reads and writes. Compiled for the host and for devices.
namespace octavo {

/// The format of floats in memory.
enum class FloatFormat : std::uint32_t { float32, bfloat16, float16 };

OCTAVO_RULE constexpr std::uint64_t bytes_of(FloatFormat format) { return format == FloatFormat::float32 ? 4 : 2; }

/// The format of an optimizer state in memory: floats, or codes of rules/state_codes.h with one scale per block.
enum class StateFormat : std::uint32_t { float32, bits8, bits4 };

/// The number of elements that a step handles together: whole blocks of every format.
inline constexpr std::uint64_t kStepBlock = 256;
static_assert(kStepBlock % rules::Momentum8::kBlock == 0 && kStepBlock % rules::Momentum4::kBlock == 0);

OCTAVO_RULE constexpr std::uint64_t codes_per_scale(StateFormat format) {
  return format == StateFormat::bits4 ? rules::Momentum4::kBlock : rules::Momentum8::kBlock;
}
/// Returns the bytes of `count` elements of a state, from the beginning of a block on.
OCTAVO_RULE constexpr std::uint64_t state_bytes(StateFormat format, std::uint64_t count) {
  if (format == StateFormat::float32) return count * sizeof(float);
  return format == StateFormat::bits8 ? count : count / 2 + count % 2;
}

struct StateView {
  void* values = nullptr;
  float* scales = nullptr;  // finite; null where there are no codes
  StateFormat format = StateFormat::float32;

  OCTAVO_RULE StateView from(std::uint64_t offset) const {
    if (values == nullptr) return {};
    return {static_cast<char*>(values) + state_bytes(format, offset),
            scales == nullptr ? nullptr : scales + offset / codes_per_scale(format), format};
  }
};

/// One tensor, or a part of one that begins at a multiple of kStepBlock. An element whose gradient is not finite, or is
/// refused by the rule, stays as it is.
struct StepOperands {
  void* parameter;
  FloatFormat parameter_format = FloatFormat::float32;
  /// For a bfloat16 parameter: what rounding leaves over, in 8 more bits per element. Null: the parameter is rounded to
  /// nearest, or at random.
  std::int8_t* tail = nullptr;
  const void* gradient;
  FloatFormat gradient_format = FloatFormat::float32;
  StateView mean;         // the momentum
  StateView square = {};  // the variance, where the rule has one; in the format of `mean`
  /// A float in the device's memory by which gradients are multiplied; null: 1.
  const float* gradient_factor = nullptr;
  /// Set to 1 where a gradient leaves its element as it is, and otherwise not written; null: not wanted. Several calls
  /// may share it.
  std::uint32_t* nonfinite = nullptr;
  bool rounds_at_random = false;  // rounds a bfloat16 parameter without a tail at random
  std::uint64_t rounding_key = 0;
  std::uint64_t first = 0;  // number of the first element, by which elements draw their random bits

  OCTAVO_RULE StepOperands from(std::uint64_t offset) const {
    StepOperands rest = *this;
    rest.parameter = static_cast<char*>(parameter) + offset * bytes_of(parameter_format);
    rest.gradient = static_cast<const char*>(gradient) + offset * bytes_of(gradient_format);
    if (tail) rest.tail += offset;
    rest.mean = mean.from(offset);
    rest.square = square.from(offset);
    rest.first += offset;
    return rest;
  }
};

OCTAVO_RULE float float_at(FloatFormat format, const void* values, std::uint64_t i) {
  if (format == FloatFormat::float32) return static_cast<const float*>(values)[i];
  const std::uint16_t bits = static_cast<const std::uint16_t*>(values)[i];
  return format == FloatFormat::bfloat16 ? rules::from_bf16({bits}) : rules::from_fp16(bits);
}

OCTAVO_RULE float parameter_at(const StepOperands& in, std::uint64_t i) {
  if (in.tail == nullptr) return float_at(in.parameter_format, in.parameter, i);
  return rules::from_bf16_with_tail({{static_cast<const std::uint16_t*>(in.parameter)[i]}, in.tail[i]});
}

OCTAVO_RULE float gradient_at(const StepOperands& in, std::uint64_t i) {
  const float gradient = float_at(in.gradient_format, in.gradient, i);
  return in.gradient_factor ? gradient * *in.gradient_factor : gradient;
}

OCTAVO_RULE void store_parameter(const StepOperands& in, std::uint64_t i, float value) {
  if (in.parameter_format == FloatFormat::float32) {
    static_cast<float*>(in.parameter)[i] = value;
    return;
  }
  std::uint16_t& bits = static_cast<std::uint16_t*>(in.parameter)[i];
  if (in.parameter_format == FloatFormat::float16) {
    bits = static_cast<std::uint16_t>(rules::to_fp16(value));
  } else if (in.tail) {
    const rules::Bf16WithTail kept = rules::to_bf16_with_tail(value);
    bits = kept.head.bits;
    in.tail[i] = kept.tail;
  } else if (in.rounds_at_random) {
    bits = rules::to_bf16_at_random(value, rules::random_bits(in.rounding_key, in.first + i)).bits;
  } else {
    bits = rules::to_bf16(value).bits;
  }
}

}  // namespace octavo
