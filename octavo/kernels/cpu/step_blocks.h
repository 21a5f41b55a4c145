// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "octavo/kernels/cpu/state_codes.h"
#include "octavo/kernels/cpu/values.h"
#include "octavo/kernels/step_operands.h"

/// The walk of an optimizer's step: blocks of floats, which lie in L1 where memory holds them in another format and
/// otherwise where they are.
namespace octavo::cpu::OCTAVO_ISA {

/// Room for a block that is not float32 in memory.
struct alignas(64) StepBuffer {
  float values[kStepBlock];
};

OCTAVO_INLINE void widen(FloatFormat format, const void* from, std::uint64_t count, float* values) {
  const auto* words = static_cast<const std::uint16_t*>(from);
  if (format == FloatFormat::bfloat16) {
    for (std::uint64_t i = 0; i < count; ++i) values[i] = rules::from_bf16({words[i]});
  } else {
    for (std::uint64_t i = 0; i < count; ++i) values[i] = rules::from_fp16(words[i]);
  }
}

/// The block's parameters: in their place, which is then written directly, or in the buffer.
OCTAVO_INLINE float* load_parameters(const StepOperands& block, std::uint64_t count, StepBuffer& buffer) {
  if (block.parameter_format == FloatFormat::float32) return static_cast<float*>(block.parameter);
  if (block.tail) {
    const auto* heads = static_cast<const std::uint16_t*>(block.parameter);
    for (std::uint64_t i = 0; i < count; ++i) {
      buffer.values[i] = rules::from_bf16_with_tail({{heads[i]}, block.tail[i]});
    }
  } else {
    widen(block.parameter_format, block.parameter, count, buffer.values);
  }
  return buffer.values;
}

OCTAVO_INLINE void store_parameters(const StepOperands& block, std::uint64_t count, const StepBuffer& buffer) {
  auto* words = static_cast<std::uint16_t*>(block.parameter);
  const float* values = buffer.values;
  if (block.parameter_format == FloatFormat::float32) return;
  if (block.parameter_format == FloatFormat::float16) {
    for (std::uint64_t i = 0; i < count; ++i) words[i] = static_cast<std::uint16_t>(rules::to_fp16(values[i]));
  } else if (block.tail) {
    for (std::uint64_t i = 0; i < count; ++i) {
      const rules::Bf16WithTail kept = rules::to_bf16_with_tail(values[i]);
      words[i] = kept.head.bits;
      block.tail[i] = kept.tail;
    }
  } else if (block.rounds_at_random) {
    for_each_group(count, [&](std::uint64_t first, auto size) {
      for_random_bits(block.rounding_key, block.first + first, size, [&](std::uint64_t i, std::uint32_t random) {
        words[first + i] = rules::to_bf16_at_random(values[first + i], random).bits;
      });
    });
  } else {
    for (std::uint64_t i = 0; i < count; ++i) words[i] = rules::to_bf16(values[i]).bits;
  }
}

OCTAVO_INLINE const float* load_gradients(const StepOperands& block, std::uint64_t count, StepBuffer& buffer) {
  const bool is_float = block.gradient_format == FloatFormat::float32;
  if (is_float && !block.gradient_factor) return static_cast<const float*>(block.gradient);
  if (is_float) {
    std::memcpy(buffer.values, block.gradient, count * sizeof(float));
  } else {
    widen(block.gradient_format, block.gradient, count, buffer.values);
  }
  const float factor = block.gradient_factor ? *block.gradient_factor : 1.0F;
  for (std::uint64_t i = 0; i < count; ++i) buffer.values[i] *= factor;
  return buffer.values;
}

/// Of the blocks of codes of a step's block.
struct StateScales {
  rules::StateScale of[kStepBlock / rules::Momentum4::kBlock];
};

/// Calls visit(state of a block of codes, its first element, its size) for those of a step's block.
template <class Map, class Visit>
OCTAVO_INLINE void for_code_blocks(const StateView& state, std::uint64_t count, Visit visit) {
  for (std::uint64_t first = 0; first < count; first += Map::kBlock) {
    const StateView one = state.from(first);
    visit(static_cast<std::uint8_t*>(one.values), one.scales, first, smaller(Map::kBlock, count - first));
  }
}

template <class Map>
OCTAVO_INLINE void decode_states(const StateView& state, std::uint64_t count, float* values) {
  for_code_blocks<Map>(state, count, [&](std::uint8_t* codes, float* kept, std::uint64_t first, std::uint64_t size) {
    decode_state<Map>(codes, *kept, size, values + first);
  });
}

/// The scales of all blocks before the codes of any: what one of them waits for is hidden behind the others.
template <class Map>
OCTAVO_INLINE void encode_states(const StateView& state, std::uint64_t count, const StateScales& scales,
                                 const float* values) {
  for_code_blocks<Map>(state, count, [&](std::uint8_t* codes, float* kept, std::uint64_t first, std::uint64_t size) {
    encode_state<Map>(values + first, size, scales.of[first / Map::kBlock], codes, kept);
  });
}

template <class Map8, class Map4>
OCTAVO_INLINE float* load_state(const StateView& state, std::uint64_t count, StepBuffer& buffer) {
  if (state.format == StateFormat::float32) return static_cast<float*>(state.values);
  if (state.format == StateFormat::bits8) {
    decode_states<Map8>(state, count, buffer.values);
  } else {
    decode_states<Map4>(state, count, buffer.values);
  }
  return buffer.values;
}

template <class Map8, class Map4>
OCTAVO_INLINE StateScales scales_of(const StateView& state, std::uint64_t count, StepBuffer& buffer) {
  StateScales scales;
  const auto work_out = [&]<class Map>(Map) {
    for (std::uint64_t first = 0; first < count; first += Map::kBlock) {
      const std::uint64_t size = smaller(Map::kBlock, count - first);
      scales.of[first / Map::kBlock] = scale_of_block<Map>(buffer.values + first, size);
    }
  };
  if (state.format == StateFormat::bits8) work_out(Map8());
  if (state.format == StateFormat::bits4) work_out(Map4());
  return scales;
}

template <class Map8, class Map4>
OCTAVO_INLINE void store_state(const StateView& state, std::uint64_t count, const StateScales& scales,
                               const StepBuffer& buffer) {
  if (state.format == StateFormat::bits8) encode_states<Map8>(state, count, scales, buffer.values);
  if (state.format == StateFormat::bits4) encode_states<Map4>(state, count, scales, buffer.values);
}

/// Whether update(i), for the elements of a block whose arrays do not overlap, is true for all of them.
template <class Update>
OCTAVO_INLINE bool update_elements(std::uint64_t count, Update update) {
  std::uint32_t all = 1;
#pragma GCC ivdep
  for (std::uint64_t i = 0; i < count; ++i) all &= static_cast<std::uint32_t>(update(i));
  return all != 0;
}

/// Asks for the memory of a block some blocks further on, all of it: the hardware's own prefetch stops at the end of a
/// page, and does nothing while a block is worked on in L1.
OCTAVO_INLINE void prefetch_step(const StepOperands& block) {
  constexpr std::uint64_t kAhead = 4 * kStepBlock;
  const auto ask = [](const void* memory, std::uint64_t bytes, std::uint64_t offset) {
    for (std::uint64_t i = 0; i < bytes; i += 64) __builtin_prefetch(static_cast<const char*>(memory) + offset + i);
  };
  const std::uint64_t wide = bytes_of(block.parameter_format), of_gradient = bytes_of(block.gradient_format);
  ask(block.parameter, wide * kStepBlock, wide * kAhead);
  ask(block.gradient, of_gradient * kStepBlock, of_gradient * kAhead);
  if (block.tail) ask(block.tail, kStepBlock, kAhead);
  for (const StateView* state : {&block.mean, &block.square}) {
    if (state->values == nullptr) continue;
    ask(state->values, state_bytes(state->format, kStepBlock), state_bytes(state->format, kAhead));
  }
}

/// Calls step(block, size) for all blocks of a tensor. The size of a whole block is a constant to the compiler.
template <class Step>
OCTAVO_INLINE void for_step_blocks(const StepOperands& operands, std::uint64_t count, Step step) {
  const std::uint64_t whole = count - count % kStepBlock;
  for (std::uint64_t first = 0; first < whole; first += kStepBlock) {
    const StepOperands block = operands.from(first);
    prefetch_step(block);
    step(block, std::integral_constant<std::uint64_t, kStepBlock>{});
  }
  if (whole < count) step(operands.from(whole), count - whole);
}

}  // namespace octavo::cpu::OCTAVO_ISA
