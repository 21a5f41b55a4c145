// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
// Only the parts of SYCL that kernels use: reading all of sycl/sycl.hpp takes two seconds in every compilation.
#include <sycl/atomic_ref.hpp>
#include <sycl/ext/oneapi/free_function_queries.hpp>
#include <sycl/ext/oneapi/kernel_properties/properties.hpp>
#include <sycl/ext/oneapi/sub_group_mask.hpp>
#include <sycl/group_algorithm.hpp>
#include <sycl/group_barrier.hpp>
#include <sycl/nd_item.hpp>
#include <sycl/sub_group.hpp>

#include "octavo/kernels/operands.h"
#include "octavo/kernels/sycl/span.h"
#include "octavo/rules/sign_bits.h"
#include "octavo/rules/state_codes.h"  // before `double` is poisoned: the compiler forms its tables in double

/// The beginning of every kernel's device source. Only the run-time compiler reads this file.
///
/// A group of items is one sub-group of kLanes items (lanes() in program.cpp chooses how many) and takes a span of
/// elements. What depends on the group alone is then known to be the same in all of its items. With one item per
/// element, loads and stores can be whole vectors. OCTAVO_LANES is given on the compiler's command line.
#define OCTAVO_KERNEL                                                                                 \
  extern "C" SYCL_EXT_ONEAPI_FUNCTION_PROPERTY((sycl::ext::oneapi::experimental::nd_range_kernel<1>)) \
      SYCL_EXT_ONEAPI_FUNCTION_PROPERTY((sycl::ext::oneapi::experimental::sub_group_size<OCTAVO_LANES>)) void

/// The fields of structs as parameters of their own, in the order of launch.h. The compiler assumes that what a struct
/// holds differs from lane to lane, and would use masks for every branch and every loop bound that depends on it.
#define OCTAVO_INPUT_PARAMETERS                                                                                        \
  const float *gradient, const octavo::rules::Residual *residual, const float *momentum, const float *preconditioner,  \
      const float *others, float gradient_weight, float momentum_weight, float sum_weight, std::uint64_t rounding_key, \
      std::uint64_t first
#define OCTAVO_INPUT                                                                                                  \
  octavo::EncodeInput {                                                                                               \
    gradient, residual, momentum, preconditioner, others, gradient_weight, momentum_weight, sum_weight, rounding_key, \
        first                                                                                                         \
  }

namespace octavo::sycl_code {

inline constexpr std::uint64_t kLanes = OCTAVO_LANES;
static_assert(kLanes == 8 || kLanes == 16 || kLanes == 32 || kLanes == 64);

OCTAVO_RULE sycl::nd_item<1> item() { return sycl::ext::oneapi::this_work_item::get_nd_item<1>(); }
OCTAVO_RULE std::uint64_t group_index() { return item().get_group_linear_id(); }
OCTAVO_RULE std::uint64_t lane() { return item().get_local_id(0); }

// What all lanes' values make together; the result is the same in all of them.
OCTAVO_RULE std::uint32_t largest_of_lanes(std::uint32_t own) {
  return sycl::reduce_over_group(item().get_sub_group(), own, sycl::maximum<std::uint32_t>());
}
OCTAVO_RULE std::uint32_t union_of_lanes(std::uint32_t own) {
  return sycl::reduce_over_group(item().get_sub_group(), own, sycl::bit_or<std::uint32_t>());
}

/// Returns the value of the next lane; meaningless in the last lane.
OCTAVO_RULE std::uint32_t of_next_lane(std::uint32_t own) {
  return sycl::shift_group_left(item().get_sub_group(), own, 1);
}

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
  const std::uint64_t first = group_index() * sycl_span::kSpan;
  for_lanes(std::min(sycl_span::kSpan, count - first), [&](std::uint64_t i, auto step) { body(first + i, step); });
}

/// Returns the lanes' flags as packed signs, lane 0 in the highest bit of the first byte; the same in all lanes.
OCTAVO_RULE std::uint64_t packed_ballot(bool flag) {
  std::uint64_t word = 0;
  sycl::ext::oneapi::group_ballot(item().get_sub_group(), flag).extract_bits(word);
  word = (word >> 1 & 0x5555555555555555U) | (word & 0x5555555555555555U) << 1;
  word = (word >> 2 & 0x3333333333333333U) | (word & 0x3333333333333333U) << 2;
  return (word >> 4 & 0x0F0F0F0F0F0F0F0FU) | (word & 0x0F0F0F0F0F0F0F0FU) << 4;
}

/// Writes the packed signs of a step to `bits`; both are the same in all lanes. All lanes write the same bytes, because
/// a branch that one lane takes alone costs more.
OCTAVO_RULE void store_packed(std::uint64_t packed, WholeStep, std::uint8_t* bits) {
  __builtin_memcpy(bits, &packed, kLanes / 8);
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
  std::uint64_t word = 0;
  __builtin_memcpy(&word, bits, kLanes / 8);
  return rules::is_positive(static_cast<std::uint8_t>(word >> lane() / 8 * 8), lane());
}

OCTAVO_RULE bool load_ballot(const std::uint8_t* bits, LastStep step) {
  return step.inside() && rules::is_positive(bits[lane() / 8], lane());
}

}  // namespace octavo::sycl_code
