// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>

#if defined(__CUDACC__)
#include "octavo/kernels/cuda/device.h"
#else
#include "octavo/kernels/sycl/device.h"
#endif
#include "octavo/kernels/lanes/chunks.h"
#include "octavo/kernels/operands.h"
#include "octavo/rules/sign_bits.h"

/// The beginning of every kernel's device source, which is one text for SYCL and CUDA. Only run-time compilers read
/// this file.
///
/// A group of items is kLanes items that run together, a sub-group of SYCL or a warp of CUDA, and takes a span of
/// elements. What depends only on the group is then known to be the same in all of its items. With one item per
/// element, loads and stores can be whole vectors.
///
/// On the compiler's command line are OCTAVO_LANES and OCTAVO_SPAN, the least number of elements that a group takes, so
/// that it is worth starting. The back end's device.h has OCTAVO_KERNEL, which declares a kernel, and namespace
/// octavo::lanes with:
// clang-format off
///   item_index()                        the number of this item in the launch, for kernels with an item per element
///   group_index(), lane()               the number of this group in the launch, and of this item in its group
///   or_into(word, bits)                 an atomic |= among the lanes
///   kLanesTakeBytes                     whether lanes should access bytes of their own, as on a GPU, and not words that are
///                                       the same for all of them
/// and what all lanes of a group call together, in kernels that are launched in groups or spans (launch.h):
///   largest_of_lanes, smallest_of_lanes, sum_of_lanes, union_of_lanes, any_lane (own)
///                                       what all lanes' values make together; the same in all of them
///   mask_of_lanes(flag)                 the lanes' flags, lane 0 in the lowest bit; the same in all of them
///   lanes_before(flag)                  how many of the lanes before this one have the flag
///   of_later_lane(own, distance)        the value of the lane that is `distance` further; meaningless in the last lanes
///   of_first_lane(own)                  the value of lane 0
///   wait_for_lanes()                    what any lane wrote before is seen by all of them afterwards
// clang-format on
///
/// The fields of structs are parameters of their own, in the order of launch.h: SYCL's compiler assumes that what a
/// struct holds differs from lane to lane, and would use masks for every branch and loop bound that depends on it.
#define OCTAVO_INPUT_PARAMETERS                                                                                        \
  const float *gradient, const octavo::rules::Residual *residual, const float *momentum, const float *preconditioner,  \
      const float *others, float gradient_weight, float momentum_weight, float sum_weight, std::uint64_t rounding_key, \
      std::uint64_t first
#define OCTAVO_INPUT                                                                                                  \
  octavo::EncodeInput {                                                                                               \
    gradient, residual, momentum, preconditioner, others, gradient_weight, momentum_weight, sum_weight, rounding_key, \
        first                                                                                                         \
  }

namespace octavo::lanes {

inline constexpr std::uint64_t kLanes = OCTAVO_LANES;
static_assert(kLanes == 8 || kLanes == 16 || kLanes == 32 || kLanes == 64);
inline constexpr std::uint64_t kSpan = OCTAVO_SPAN;

/// Returns the value of the next lane; meaningless in the last lane.
OCTAVO_RULE std::uint32_t of_next_lane(std::uint32_t own) { return of_later_lane(own, 1); }

template <class T>
OCTAVO_RULE T* assume_there(T* pointer) {
  __builtin_assume(pointer != nullptr);
  return pointer;
}

/// A step in which every lane has an element. Because the compiler knows this, its loads and stores are whole vectors.
struct WholeStep {
  static constexpr std::uint64_t count = kLanes;
  static constexpr bool inside() { return true; }
};
/// The last step, with fewer elements than lanes. A lane that is not inside must not touch memory.
struct LastStep {
  std::uint64_t count;
  bool inside() const { return lane() < count; }
};

/// Calls body(i, step) for the elements of [0, count), kLanes at a time: lane l has element i + l.
template <class Body>
OCTAVO_RULE void for_lanes(std::uint64_t count, Body body) {
  const std::uint64_t whole = count / kLanes * kLanes;
  for (std::uint64_t i = 0; i < whole; i += kLanes) body(i, WholeStep());
  if (whole < count) body(whole, LastStep{count - whole});
}

/// Does the same for the span of [0, count) that is this group's.
template <class Body>
OCTAVO_RULE void for_span(std::uint64_t count, Body body) {
  const std::uint64_t first = group_index() * kSpan;
  for_lanes(std::min(kSpan, count - first), [&](std::uint64_t i, auto step) { body(first + i, step); });
}

/// Returns the lanes' flags as packed signs, lane 0 in the highest bit of the first byte; the same in all lanes.
OCTAVO_RULE std::uint64_t packed_ballot(bool flag) {
  std::uint64_t word = mask_of_lanes(flag);
  word = (word >> 1 & 0x5555555555555555U) | (word & 0x5555555555555555U) << 1;
  word = (word >> 2 & 0x3333333333333333U) | (word & 0x3333333333333333U) << 2;
  return (word >> 4 & 0x0F0F0F0F0F0F0F0FU) | (word & 0x0F0F0F0F0F0F0F0FU) << 4;
}

/// Writes the packed signs of a step to `bits`; both are the same in all lanes. On a processor all lanes write the same
/// bytes, because a branch that one lane takes alone costs more.
OCTAVO_RULE void store_packed(std::uint64_t packed, WholeStep, std::uint8_t* bits) {
  if constexpr (kLanesTakeBytes) {
    if (lane() < kLanes / 8) bits[lane()] = static_cast<std::uint8_t>(packed >> 8 * lane());
  } else {
    __builtin_memcpy(bits, &packed, kLanes / 8);
  }
}
OCTAVO_RULE void store_packed(std::uint64_t packed, LastStep step, std::uint8_t* bits) {
  for (std::uint64_t byte = 0; 8 * byte < step.count; ++byte) {
    bits[byte] = static_cast<std::uint8_t>(packed >> 8 * byte);
  }
}

/// Writes the lanes' flags to `bits`, which is the same in all lanes.
template <class Step>
OCTAVO_RULE void store_ballot(bool flag, Step step, std::uint8_t* bits) {
  store_packed(packed_ballot(flag && step.inside()), step, bits);
}

/// Returns the lane's own flag, one of those that are packed from `bits` on; `bits` is the same in all lanes.
OCTAVO_RULE bool load_ballot(const std::uint8_t* bits, WholeStep) {
  if constexpr (kLanesTakeBytes) return rules::is_positive(bits[lane() / 8], lane());
  std::uint64_t word = 0;
  __builtin_memcpy(&word, bits, kLanes / 8);
  return rules::is_positive(static_cast<std::uint8_t>(word >> lane() / 8 * 8), lane());
}

OCTAVO_RULE bool load_ballot(const std::uint8_t* bits, LastStep step) {
  return step.inside() && rules::is_positive(bits[lane() / 8], lane());
}

}  // namespace octavo::lanes
