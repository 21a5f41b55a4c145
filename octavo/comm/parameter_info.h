// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "octavo/comm/ownership.h"

namespace octavo {

/// What averaging a parameter's gradients must know of it.
struct ParameterInfo {
  std::string name;
  std::uint64_t count;  // real numbers: two for each element of a complex parameter
  bool exempt;          // it is sent in float32
  /// Of the parameter as a matrix: its first dimension, or 1 where it has only one (rows_of). A matrix that has 1 here
  /// takes more bytes by `powersgd` than by `dense`, since its factors are a row and a number.
  std::uint64_t rows = 1;
  Ownership ownership = Ownership::even();
};

/// Where a parameter's gradient lies in a bucket.
struct Slot {
  std::size_t parameter;  // index into the ParameterInfos
  std::uint64_t offset;   // in elements of the bucket
  /// The gradient's address where it lies outside the bucket, in memory that belongs to the job; null: in the bucket.
  void* apart = nullptr;
};

/// Returns ParameterInfo::rows of a tensor of these sizes; 1 where it has one dimension or no elements.
inline std::uint64_t rows_of(std::span<const std::int64_t> sizes) {
  const bool is_empty = std::ranges::find(sizes, 0) != sizes.end();
  return sizes.size() > 1 && !is_empty ? static_cast<std::uint64_t>(sizes.front()) : 1;
}

}  // namespace octavo
