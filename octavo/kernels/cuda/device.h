// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

/// The primitives of lanes (kernels/lanes/lanes.h) in CUDA. Only NVRTC reads this file. A group of items is one warp,
/// in a block of its own; a kernel with an item per element has larger blocks. OCTAVO_KERNEL declares a kernel.
#define OCTAVO_KERNEL extern "C" __global__ void

// Rules use GCC's names of these, of which NVRTC knows the others.
#define __builtin_memcpy memcpy
#define __builtin_sqrtf sqrtf
#define __builtin_fmaf fmaf
#define __builtin_popcount __popc
#define __builtin_ctzll(word) (__ffsll(static_cast<long long>(word)) - 1)
#define __builtin_inff() __builtin_bit_cast(float, 0x7F800000U)

#include "octavo/rules/portable.h"

namespace octavo::lanes {

inline constexpr bool kLanesTakeBytes = true;
inline constexpr unsigned kAllLanes = 0xFFFFFFFFU;
static_assert(OCTAVO_LANES == 32);

OCTAVO_RULE std::uint64_t item_index() { return std::uint64_t{blockIdx.x} * blockDim.x + threadIdx.x; }
OCTAVO_RULE std::uint64_t group_index() { return blockIdx.x; }
OCTAVO_RULE std::uint64_t lane() { return threadIdx.x; }

/// Returns what combine(a, b), which must not depend on their order, makes of all lanes' values.
template <class Value, class Combine>
OCTAVO_RULE Value combined(Value own, Combine combine) {
  for (int distance = OCTAVO_LANES / 2; distance > 0; distance /= 2) {
    own = combine(own, __shfl_xor_sync(kAllLanes, own, distance));
  }
  return own;
}

template <class Number>
OCTAVO_RULE Number largest_of_lanes(Number own) {
  return combined(own, [](Number a, Number b) { return a < b ? b : a; });
}
OCTAVO_RULE std::uint32_t largest_of_lanes(std::uint32_t own) {
#if __CUDA_ARCH__ >= 800
  return __reduce_max_sync(kAllLanes, own);
#else
  return largest_of_lanes<std::uint32_t>(own);
#endif
}
template <class Number>
OCTAVO_RULE Number smallest_of_lanes(Number own) {
  return combined(own, [](Number a, Number b) { return b < a ? b : a; });
}
template <class Count>
OCTAVO_RULE Count sum_of_lanes(Count own) {
  return combined(own, [](Count a, Count b) { return a + b; });
}
OCTAVO_RULE std::uint32_t union_of_lanes(std::uint32_t own) {
#if __CUDA_ARCH__ >= 800
  return __reduce_or_sync(kAllLanes, own);
#else
  return combined(own, [](std::uint32_t a, std::uint32_t b) { return a | b; });
#endif
}
OCTAVO_RULE bool any_lane(bool own) { return __any_sync(kAllLanes, own) != 0; }

OCTAVO_RULE std::uint64_t mask_of_lanes(bool flag) { return __ballot_sync(kAllLanes, flag); }
OCTAVO_RULE std::uint64_t lanes_before(bool flag) {
  return static_cast<std::uint64_t>(__popc(__ballot_sync(kAllLanes, flag) & ((1U << threadIdx.x) - 1)));
}

template <class Value>
OCTAVO_RULE Value of_later_lane(Value own, std::uint64_t distance) {
  return __shfl_down_sync(kAllLanes, own, static_cast<unsigned>(distance));
}
template <class Value>
OCTAVO_RULE Value of_first_lane(Value own) {
  return __shfl_sync(kAllLanes, own, 0);
}

OCTAVO_RULE void wait_for_lanes() { __syncwarp(); }

OCTAVO_RULE void or_into(std::uint32_t& word, std::uint32_t bits) { atomicOr(&word, bits); }

}  // namespace octavo::lanes
