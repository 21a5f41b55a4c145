// SPDX-License-Identifier: Apache-2.0
#include "octavo/rules/random_k.h"

#include <algorithm>

#include "octavo/kernels/reference/table.h"

namespace octavo::reference {

void select_random(Queue, const EncodeInput& in, std::uint64_t count, const rules::RandomK& shape, float* values) {
  for (std::uint64_t j = 0; j < shape.kept_in(count); ++j) {
    values[j] = value_at(in, shape.index(j, count)) * shape.weight(j, count);
  }
  for (std::uint64_t i = 0; i < count; ++i) {
    if (!rules::is_finite(value_at(in, i))) values[i / shape.stride] = rules::from_bits(rules::kQuietNaNBits);
  }
}

void settle_random(Queue, const EncodeInput& in, std::uint64_t count, const rules::RandomK& shape, const float* sent,
                   rules::Residual* next) {
  for (std::uint64_t i = 0; i < count; ++i) {
    const std::uint64_t j = i / shape.stride;
    const float decoded = shape.index(j, count) == i ? sent[j] : 0.0F;
    next[i] = residual_at(in, i, rules::left_over_of(value_at(in, i), decoded));
  }
}

void scatter_random(Queue, const float* sent, std::uint64_t count, const rules::RandomK& shape, Store how, float* out,
                    std::uint32_t* nonfinite) {
  if (how != Store::add) std::fill_n(out, count, 0.0F);
  for (std::uint64_t j = 0; j < shape.kept_in(count); ++j) {
    report(rules::is_finite(sent[j]), nonfinite);
    store(how, sent[j], out[shape.index(j, count)]);
  }
}

}  // namespace octavo::reference
