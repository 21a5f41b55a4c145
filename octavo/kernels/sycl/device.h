// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sycl/sycl.hpp>

#include "octavo/kernels/operands.h"

/// What every kernel's device source begins with. Only the run-time compiler reads this file.
///
/// A group of items is one sub-group of kLanes items (program.cpp chooses the largest that the device has), which takes
/// a span of elements: what depends on the group alone is then known to be the same in all of its items, and an element
/// an item lets loads and stores be whole vectors. OCTAVO_LANES is given on the compiler's command line.
#define OCTAVO_KERNEL                                                                                 \
  extern "C" SYCL_EXT_ONEAPI_FUNCTION_PROPERTY((sycl::ext::oneapi::experimental::nd_range_kernel<1>)) \
      SYCL_EXT_ONEAPI_FUNCTION_PROPERTY((sycl::ext::oneapi::experimental::sub_group_size<OCTAVO_LANES>)) void

namespace octavo::sycl_device {

inline constexpr std::uint64_t kLanes = OCTAVO_LANES;
static_assert(kLanes == 8 || kLanes == 16 || kLanes == 32 || kLanes == 64);

inline sycl::nd_item<1> item() { return sycl::ext::oneapi::this_work_item::get_nd_item<1>(); }
inline std::uint64_t group_index() { return item().get_group_linear_id(); }
inline std::uint64_t lane() { return item().get_sub_group().get_local_linear_id(); }

/// Calls body(i, inside) for the lanes' elements of [0, count), kLanes at a time: whole steps first, where every lane
/// is inside, then the rest, where the body must not touch memory unless it is `inside`.
template <class Body>
inline void for_lanes(std::uint64_t count, Body body) {
  const std::uint64_t whole = count / kLanes * kLanes;
  for (std::uint64_t i = 0; i < whole; i += kLanes) body(i, std::true_type());
  if (whole < count) body(whole, whole + lane() < count);
}

/// The lanes' flags as packed signs, lane 0 in the highest bit of the first byte; the same in all lanes.
inline std::uint64_t packed_ballot(bool flag) {
  std::uint64_t word = 0;
  sycl::ext::oneapi::group_ballot(item().get_sub_group(), flag).extract_bits(word);
  word = (word >> 1 & 0x5555555555555555U) | (word & 0x5555555555555555U) << 1;
  word = (word >> 2 & 0x3333333333333333U) | (word & 0x3333333333333333U) << 2;
  return (word >> 4 & 0x0F0F0F0F0F0F0F0FU) | (word & 0x0F0F0F0F0F0F0F0FU) << 4;
}

/// Writes the lanes' flags to `bits`: `count` of them, kLanes or fewer.
inline void store_ballot(bool flag, std::uint64_t count, std::uint8_t* bits) {
  const std::uint64_t word = packed_ballot(flag);
  if (lane() != 0) return;
  if (count == kLanes) {
    __builtin_memcpy(bits, &word, kLanes / 8);
  } else {
    for (std::uint64_t byte = 0; byte < (count + 7) / 8; ++byte)
      bits[byte] = static_cast<std::uint8_t>(word >> 8 * byte);
  }
}

}  // namespace octavo::sycl_device
