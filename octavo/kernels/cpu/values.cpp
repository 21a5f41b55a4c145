// SPDX-License-Identifier: Apache-2.0
#include "octavo/kernels/cpu/values.h"

#include <algorithm>

namespace octavo::cpu::OCTAVO_ISA {

namespace {

/// The pointer, of which the compiler then knows whether it is null.
template <bool kIsThere, class T>
OCTAVO_INLINE const T* known(const T* pointer) {
  if constexpr (!kIsThere) return nullptr;
  if (pointer == nullptr) __builtin_unreachable();
  return pointer;
}

/// Asks for what a group further on will need, but for `others`: their sum was written just now.
OCTAVO_INLINE void prefetch(const EncodeInput& in, std::uint64_t i) {
  prefetch_ahead(in.gradient + i);
  if (in.residual) prefetch_ahead(in.residual + i);
  if (in.momentum) prefetch_ahead(in.momentum + i);
  if (in.momentum) prefetch_ahead(in.preconditioner + i);
}

template <bool kMomentum, bool kOthers, bool kResidual>
void work_out_known(EncodeInput in, std::uint64_t count, float* __restrict values) {
  in.momentum = known<kMomentum>(in.momentum);
  in.others = known<kOthers>(in.others);
  in.residual = known<kResidual>(in.residual);
  for_each_group(count, [&](std::uint64_t i, auto size) {
    prefetch(in, i);
    for (std::uint64_t j = 0; j < size; ++j) values[i + j] = value_at(in, i + j);
    for (std::uint64_t j = size; j < kGroup; ++j) values[i + j] = 0.0F;
  });
}

}  // namespace

void work_out(const EncodeInput& in, std::uint64_t first, std::uint64_t count, float* values) {
  const auto with = [&](auto momentum, auto others) {
    constexpr bool kMomentum = decltype(momentum)::value, kOthers = decltype(others)::value;
    if (in.residual) return work_out_known<kMomentum, kOthers, true>(in.from(first), count, values);
    work_out_known<kMomentum, kOthers, false>(in.from(first), count, values);
  };
  constexpr std::true_type kYes;
  constexpr std::false_type kNo;
  if (in.momentum) return in.others ? with(kYes, kYes) : with(kYes, kNo);
  return in.others ? with(kNo, kYes) : with(kNo, kNo);
}

}  // namespace octavo::cpu::OCTAVO_ISA
