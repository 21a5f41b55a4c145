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

#include "octavo/rules/portable.h"
#include "octavo/rules/state_codes.h"  // before `double` is poisoned: the compiler forms its tables in double

/// The primitives of lanes (kernels/lanes/lanes.h) in SYCL. Only the run-time compiler reads this file. A group of
/// items is one sub-group of OCTAVO_LANES items. OCTAVO_KERNEL declares a kernel, of Octavo's own or a user's.
#define OCTAVO_KERNEL                                                                                 \
  extern "C" SYCL_EXT_ONEAPI_FUNCTION_PROPERTY((sycl::ext::oneapi::experimental::nd_range_kernel<1>)) \
      SYCL_EXT_ONEAPI_FUNCTION_PROPERTY((sycl::ext::oneapi::experimental::sub_group_size<OCTAVO_LANES>)) void

namespace octavo::sycl_code {

OCTAVO_RULE sycl::nd_item<1> item() { return sycl::ext::oneapi::this_work_item::get_nd_item<1>(); }

}  // namespace octavo::sycl_code

namespace octavo::lanes {

inline constexpr bool kLanesTakeBytes = false;
OCTAVO_RULE sycl::sub_group own_group() { return sycl_code::item().get_sub_group(); }

OCTAVO_RULE std::uint64_t item_index() { return sycl_code::item().get_global_id(0); }
OCTAVO_RULE std::uint64_t group_index() { return sycl_code::item().get_group_linear_id(); }
OCTAVO_RULE std::uint64_t lane() { return sycl_code::item().get_local_id(0); }

template <class Number>
OCTAVO_RULE Number largest_of_lanes(Number own) {
  return sycl::reduce_over_group(own_group(), own, sycl::maximum<Number>());
}
template <class Number>
OCTAVO_RULE Number smallest_of_lanes(Number own) {
  return sycl::reduce_over_group(own_group(), own, sycl::minimum<Number>());
}
template <class Count>
OCTAVO_RULE Count sum_of_lanes(Count own) {
  return sycl::reduce_over_group(own_group(), own, sycl::plus<Count>());
}
OCTAVO_RULE std::uint32_t union_of_lanes(std::uint32_t own) {
  return sycl::reduce_over_group(own_group(), own, sycl::bit_or<std::uint32_t>());
}
OCTAVO_RULE bool any_lane(bool own) { return sycl::any_of_group(own_group(), own); }

OCTAVO_RULE std::uint64_t mask_of_lanes(bool flag) {
  std::uint64_t mask = 0;
  sycl::ext::oneapi::group_ballot(own_group(), flag).extract_bits(mask);
  return mask;
}
OCTAVO_RULE std::uint64_t lanes_before(bool flag) {
  return sycl::exclusive_scan_over_group(own_group(), std::uint64_t{flag}, sycl::plus<std::uint64_t>());
}

template <class Value>
OCTAVO_RULE Value of_later_lane(Value own, std::uint64_t distance) {
  return sycl::shift_group_left(own_group(), own, distance);
}
template <class Value>
OCTAVO_RULE Value of_first_lane(Value own) {
  return sycl::group_broadcast(own_group(), own, 0);
}

OCTAVO_RULE void wait_for_lanes() { sycl::group_barrier(own_group()); }

OCTAVO_RULE void or_into(std::uint32_t& word, std::uint32_t bits) {
  sycl::atomic_ref<std::uint32_t, sycl::memory_order::relaxed, sycl::memory_scope::sub_group>(word).fetch_or(bits);
}

}  // namespace octavo::lanes
