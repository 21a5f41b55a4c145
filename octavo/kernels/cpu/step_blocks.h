// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <utility>

#include "octavo/kernels/cpu/values.h"
#include "octavo/kernels/cpu/vectors.h"
#include "octavo/kernels/step_operands.h"

/// The loop of an optimizer's step over blocks of floats. A block is copied to a buffer in L1 where memory holds it in
/// another format, or holds fewer elements than a block; otherwise it is used where it is. StepOperands must not be
/// copied per block: a wide load that spans several recent narrow stores waits until they have reached L1.
namespace octavo::cpu::OCTAVO_ISA {

/// Room for a block that is not float32 in memory.
struct alignas(64) StepBuffer {
  float values[kStepBlock] = {};
};

OCTAVO_INLINE void clear_rest(std::uint64_t count, StepBuffer& buffer) {
  std::memset(buffer.values + count, 0, (kStepBlock - count) * sizeof(float));
}

OCTAVO_INLINE void widen(FloatFormat format, const void* from, std::uint64_t count, float* values) {
  const auto* words = static_cast<const std::uint16_t*>(from);
  if (format == FloatFormat::bfloat16) {
    for (std::uint64_t i = 0; i < count; ++i) values[i] = rules::from_bf16({words[i]});
  } else {
    for (std::uint64_t i = 0; i < count; ++i) values[i] = rules::from_fp16(words[i]);
  }
}

/// Returns the block's parameters: in their place, which is then written directly, or in the buffer, followed by zeros.
OCTAVO_INLINE float* load_parameters(const StepOperands& operands, std::uint64_t first, std::uint64_t count,
                                     StepBuffer& buffer) {
  const bool is_float = operands.parameter_format == FloatFormat::float32;
  if (is_float && count == kStepBlock) return static_cast<float*>(operands.parameter) + first;
  const StepOperands block = operands.from(first);
  clear_rest(count, buffer);
  if (is_float) {
    std::memcpy(buffer.values, block.parameter, count * sizeof(float));
  } else if (block.tail) {
    const auto* heads = static_cast<const std::uint16_t*>(block.parameter);
    for (std::uint64_t i = 0; i < count; ++i) {
      buffer.values[i] = rules::from_bf16_with_tail({{heads[i]}, block.tail[i]});
    }
  } else {
    widen(block.parameter_format, block.parameter, count, buffer.values);
  }
  return buffer.values;
}

OCTAVO_INLINE void store_parameters(const StepOperands& operands, std::uint64_t first, std::uint64_t count,
                                    const StepBuffer& buffer) {
  if (operands.parameter_format == FloatFormat::float32 && count == kStepBlock) return;
  const StepOperands block = operands.from(first);
  auto* words = static_cast<std::uint16_t*>(block.parameter);
  const float* values = buffer.values;
  if (block.parameter_format == FloatFormat::float32) {
    std::memcpy(block.parameter, values, count * sizeof(float));
  } else if (block.parameter_format == FloatFormat::float16) {
    for (std::uint64_t i = 0; i < count; ++i) words[i] = static_cast<std::uint16_t>(rules::to_fp16(values[i]));
  } else if (block.tail) {
    for (std::uint64_t i = 0; i < count; ++i) {
      const rules::Bf16WithTail kept = rules::to_bf16_with_tail(values[i]);
      words[i] = kept.head.bits;
      block.tail[i] = kept.tail;
    }
  } else if (block.rounds_at_random) {
    for_each_group(count, [&](std::uint64_t begin, auto size) {
      for_random_bits(block.rounding_key, block.first + begin, size, [&](std::uint64_t i, std::uint32_t random) {
        words[begin + i] = rules::to_bf16_at_random(values[begin + i], random).bits;
      });
    });
  } else {
    for (std::uint64_t i = 0; i < count; ++i) words[i] = rules::to_bf16(values[i]).bits;
  }
}

OCTAVO_INLINE const float* load_gradients(const StepOperands& operands, std::uint64_t first, std::uint64_t count,
                                          StepBuffer& buffer) {
  const bool is_float = operands.gradient_format == FloatFormat::float32;
  const float* const factor = operands.gradient_factor;
  if (is_float && !factor && count == kStepBlock) return static_cast<const float*>(operands.gradient) + first;
  const StepOperands block = operands.from(first);
  clear_rest(count, buffer);
  if (is_float) {
    std::memcpy(buffer.values, block.gradient, count * sizeof(float));
  } else {
    widen(block.gradient_format, block.gradient, count, buffer.values);
  }
  const float times = factor ? *factor : 1.0F;
  for (std::uint64_t i = 0; i < count; ++i) buffer.values[i] *= times;
  return buffer.values;
}

/// Prefetches memory some blocks ahead of the loop, in each turn as much as a turn uses. The hardware's own prefetch
/// stops at the end of a page. A processor that is asked for a whole block at once works on nothing else until it can
/// ask for the rest. `kStateBits`: the bits of an element of each state.
template <std::uint64_t kStateBits>
class Prefetch {
 public:
  /// Takes up the block that begins at element `first`.
  OCTAVO_INLINE void begin(const StepOperands& operands, std::uint64_t first) {
    const std::uint64_t ahead = first + 4 * kStepBlock;
    gradient_ = at(operands.gradient, ahead * bytes_of(operands.gradient_format));
    parameter_ = at(operands.parameter, ahead * bytes_of(operands.parameter_format));
    mean_ = at(operands.mean.values, state_bytes(operands.mean.format, ahead));
    // a tensor that a step lacks: lines that are asked for anyway cost less than a branch in each turn
    square_ = operands.square.values ? at(operands.square.values, state_bytes(operands.square.format, ahead)) : mean_;
    tail_ = operands.tail ? at(operands.tail, ahead) : mean_;
  }
  OCTAVO_INLINE void turn(std::uint64_t i) const {
    ask<32>(parameter_, i);
    ask<32>(gradient_, i);
    ask<kStateBits>(mean_, i);
    ask<kStateBits>(square_, i);
    ask<8>(tail_, i);
  }

 private:
  OCTAVO_INLINE static const char* at(const void* memory, std::uint64_t bytes) {
    return static_cast<const char*>(memory) + bytes;
  }
  /// Asks for what a turn uses of a tensor with up to kBits for each element. Where it has fewer, the lines of two
  /// blocks are asked for, each of them in two blocks.
  template <std::uint64_t kBits>
  OCTAVO_INLINE static void ask(const char* block, std::uint64_t i) {
    constexpr std::uint64_t kBytes = kBits * kLanes / 8;
    for (std::uint64_t byte = 0; byte < kBytes; byte += kCacheLineBytes) {
      __builtin_prefetch(block + i * kBits / 8 + byte);
    }
  }

  const char *parameter_ = nullptr, *gradient_ = nullptr, *mean_ = nullptr, *square_ = nullptr, *tail_ = nullptr;
};

/// Goes through the blocks of a tensor in two halves. The first half of each block and the second half of the block
/// before run side by side, kLanes elements at a time. A processor therefore always finds work of several kinds, which
/// need different units of it, and does not wait for what takes long, such as roots, divisions and the scale of a
/// block. A Block has
///
///   Room                            the memory that it may need, which it does not own
///   kStateBits                      the bits of an element of each state
///   Block(step, room)
///   begin(operands, first, count)   takes up the block that begins at element `first`
///   first(i), second(i)             a half for kLanes of its elements, from i on
///   between(), end()                called after all of the first half, and after all of the second half
///   takes_all()                     after between(): whether the rule took all gradients
///
/// For a Block that has not begun, second() and end() do no harm. between() may do them itself, and leave the Block as
/// one that has not begun. Returns whether the rule took all gradients.
///
/// A Block points to its Room, and nothing points to the Block. The compiler then knows that what is stored does not
/// change it, and keeps pointers, factors and extremes where they are. Otherwise it would load them again for each
/// kLanes elements.
template <class Block, class Step>
OCTAVO_INLINE bool for_step_blocks(const StepOperands& operands, std::uint64_t count, const Step& step) {
  typename Block::Room rooms[2];
  Block blocks[2] = {Block(step, rooms[0]), Block(step, rooms[1])};
  Block *now = &blocks[0], *before = &blocks[1];
  Prefetch<Block::kStateBits> prefetch;
  bool takes_all = true;
  for (std::uint64_t first = 0; first < count; first += kStepBlock) {
    now->begin(operands, first, smaller(kStepBlock, count - first));
    prefetch.begin(operands, first);
    for (std::uint64_t i = 0; i < kStepBlock; i += kLanes) {
      prefetch.turn(i);
      now->first(i);
      before->second(i);
    }
    before->end();
    now->between();
    takes_all &= now->takes_all();
    std::swap(now, before);
  }
  for (std::uint64_t i = 0; i < kStepBlock; i += kLanes) before->second(i);
  before->end();
  return takes_all;
}

}  // namespace octavo::cpu::OCTAVO_ISA
