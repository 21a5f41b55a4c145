// SPDX-License-Identifier: Apache-2.0
#include "octavo/kernels/cpu/values.h"

#include <algorithm>

namespace octavo::cpu::OCTAVO_ISA {

namespace {

/// Returns the pointer, and lets the compiler know whether it is null.
template <bool kIsThere, class T>
OCTAVO_INLINE const T* known(const T* pointer) {
  if constexpr (!kIsThere) return nullptr;
  if (pointer == nullptr) __builtin_unreachable();
  return pointer;
}

template <bool kPrefetches, bool kMomentum, bool kOthers, bool kResidual>
void work_out_known(EncodeInput in, std::uint64_t count, float* __restrict values) {
  in.momentum = known<kMomentum>(in.momentum);
  in.others = known<kOthers>(in.others);
  in.residual = known<kResidual>(in.residual);
  for_each_group(count, [&](std::uint64_t i, auto size) {
    if constexpr (kPrefetches) prefetch(in, i);
    for (std::uint64_t j = 0; j < size; ++j) values[i + j] = value_at(in, i + j);
    for (std::uint64_t j = size; j < kGroup; ++j) values[i + j] = 0.0F;
  });
}

template <bool kPrefetches>
OCTAVO_INLINE void work_out_any(const EncodeInput& in, std::uint64_t first, std::uint64_t count, float* values) {
  const auto with = [&](auto momentum, auto others) {
    constexpr bool kMomentum = decltype(momentum)::value, kOthers = decltype(others)::value;
    const EncodeInput rest = in.from(first);
    if (in.residual) return work_out_known<kPrefetches, kMomentum, kOthers, true>(rest, count, values);
    work_out_known<kPrefetches, kMomentum, kOthers, false>(rest, count, values);
  };
  constexpr std::true_type kYes;
  constexpr std::false_type kNo;
  if (in.momentum) return in.others ? with(kYes, kYes) : with(kYes, kNo);
  return in.others ? with(kNo, kYes) : with(kNo, kNo);
}

}  // namespace

void work_out(const EncodeInput& in, std::uint64_t first, std::uint64_t count, float* values) {
  work_out_any<true>(in, first, count, values);
}

void work_out_prefetched(const EncodeInput& in, std::uint64_t first, std::uint64_t count, float* values) {
  work_out_any<false>(in, first, count, values);
}

}  // namespace octavo::cpu::OCTAVO_ISA
