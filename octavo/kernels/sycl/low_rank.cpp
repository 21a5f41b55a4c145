// SPDX-License-Identifier: Apache-2.0
#include "octavo/rules/low_rank.h"

#include "octavo/kernels/sycl/launch.h"
#include "octavo/kernels/sycl/table.h"

namespace octavo::sycl_backend {

void find_left_factor(Queue queue, const EncodeInput& in, const rules::LowRank& shape, std::uint64_t first,
                      std::uint64_t count, const float* right, float* left) {
  launch_groups(queue, {"low_rank", "find_left_factor"}, count * shape.rank, in, shape, first, right, left);
}

void find_right_factor(Queue queue, const EncodeInput& in, const rules::LowRank& shape, std::uint64_t first,
                       std::uint64_t count, const float* left, float* right) {
  launch_spans(queue, {"low_rank", "find_right_factor"}, count, in, shape, first, count, left, right);
}

void multiply_factors(Queue queue, const EncodeInput& in, const rules::LowRank& shape, std::uint64_t first,
                      std::uint64_t count, const float* left, const float* right, float* out, rules::Residual* next,
                      std::uint32_t* nonfinite) {
  launch_spans(queue, {"low_rank", "multiply_factors"}, count * shape.columns, in, shape, first, count, left, right,
               out, next, nonfinite);
}

}  // namespace octavo::sycl_backend
