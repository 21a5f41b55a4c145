// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "octavo/rules/counter_random.h"
#include "octavo/rules/portable.h"

namespace octavo::rules {

/// One value of every `stride` values is kept, at a place that is drawn from a key that all ranks share. The places
/// need not be sent, and the ranks' values may be added up. The last stride may be shorter. For a stride with a NaN or
/// an infinity anywhere, a NaN is sent.
struct RandomK {
  std::uint64_t key;
  std::uint64_t stride;  // elements
  std::uint64_t before;  // strides of the range that has this key before the first one here
  bool is_unbiased;      // values are multiplied by the length of their stride: their mean over keys is the value

  OCTAVO_RULE constexpr std::uint64_t kept_in(std::uint64_t count) const {
    return count / stride + (count % stride != 0);
  }
  /// Returns the element that stride number j keeps, of `count` elements.
  OCTAVO_RULE constexpr std::uint64_t index(std::uint64_t j, std::uint64_t count) const {
    return j * stride + (random_base(key, before + j) * size(j, count) >> 32);
  }
  OCTAVO_RULE constexpr float weight(std::uint64_t j, std::uint64_t count) const {
    return is_unbiased ? static_cast<float>(static_cast<std::int64_t>(size(j, count))) : 1.0F;
  }

 private:
  OCTAVO_RULE constexpr std::uint64_t size(std::uint64_t j, std::uint64_t count) const {
    const std::uint64_t rest = count - j * stride;
    return rest < stride ? rest : stride;
  }
};

}  // namespace octavo::rules
