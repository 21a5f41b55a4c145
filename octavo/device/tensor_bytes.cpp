// SPDX-License-Identifier: Apache-2.0
#include "octavo/device/tensor_bytes.h"

#include <algorithm>

#include "octavo/kernels/error.h"

namespace octavo {

std::uint64_t tensor_bytes(c10::IntArrayRef shape, c10::ScalarType dtype, const char* where) {
  constexpr std::uint64_t kMost = std::uint64_t{1} << 60;  // no sum with an alignment can overflow below it
  if (c10::isQIntType(dtype)) {
    fail(ErrorCode::wrong_type, where, "expected a dtype that is not quantized, got ", toString(dtype));
  }
  const auto least = std::ranges::min_element(shape);
  if (least != shape.end() && *least < 0) {
    fail(ErrorCode::invalid_argument, where, "expected sizes of at least 0, got ", *least);
  }
  if (least != shape.end() && *least == 0) return 0;
  std::uint64_t bytes = c10::elementSize(dtype);
  for (const std::int64_t size : shape) {
    if (!__builtin_mul_overflow(bytes, static_cast<std::uint64_t>(size), &bytes) && bytes <= kMost) continue;
    fail(ErrorCode::out_of_memory, where, "a tensor of shape ", shape, " and dtype ", toString(dtype),
         " needs more than ", kMost, " bytes, the most that can be asked for");
  }
  return bytes;
}

}  // namespace octavo
