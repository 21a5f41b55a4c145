// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tests/cuda/emulator/lanes.h"

/// CUDA's language, as much of it as Octavo's device code uses, in GCC's C++. nvrtc.cpp puts this file before every
/// source. There is no standard library but what the user of NVRTC passes.
#define __CUDACC__
#define __CUDA_ARCH__ 900
#define __host__
#define __device__
#define __forceinline__ [[gnu::always_inline]] inline
#define __builtin_assume(condition) static_cast<void>(0)
#define threadIdx (octavo_emulated_lanes->thread().index)
#define blockIdx (octavo_emulated_lanes->thread().block)
#define blockDim (octavo_emulated_lanes->thread().block_size)
#define gridDim (octavo_emulated_lanes->thread().grid_size)

extern "C" {
void* memcpy(void* to, const void* from, unsigned long bytes);
float sqrtf(float value);
float fmaf(float a, float b, float c);
[[gnu::visibility("default")]] const octavo::cuda_emulator::Lanes* octavo_emulated_lanes;
}

namespace octavo::cuda_emulator {

template <class Value>
std::uint64_t bits_of(Value value) {
  static_assert(sizeof value <= 8);
  std::uint64_t bits = 0;
  memcpy(&bits, &value, sizeof value);
  return bits;
}
template <class Value>
Value of_bits(std::uint64_t bits) {
  Value value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

/// Returns the value of lane number source(own lane); the lane's own where there is no such lane.
template <class Value, class Source>
Value shuffled(Primitive primitive, unsigned mask, Value own, Source source) {
  const std::uint64_t* const all = octavo_emulated_lanes->meet(primitive, mask, bits_of(own));
  const unsigned lane = threadIdx.x % 32, from = source(lane);
  return of_bits<Value>(all[from < 32 ? from : lane]);
}

inline unsigned ballot(Primitive primitive, unsigned mask, bool own) {
  const std::uint64_t* const all = octavo_emulated_lanes->meet(primitive, mask, own);
  unsigned flags = 0;
  for (unsigned lane = 0; lane < 32; ++lane) flags |= static_cast<unsigned>(all[lane]) << lane;
  return flags;
}

template <unsigned...>
struct Indices {};

/// Calls a kernel with parameters of its own types, which lie at these addresses.
template <class... Parameters>
void call(void (*kernel)(Parameters...), void** parameters) {
  [&]<unsigned... kIndices>(Indices<kIndices...>) {
    kernel(*static_cast<Parameters*>(parameters[kIndices])...);
  }(Indices<__integer_pack(sizeof...(Parameters))...>());
}

/// The sizes of a kernel's parameters.
template <class Kernel>
struct Signature;
template <class... Parameters>
struct Signature<void (*)(Parameters...)> {
  static constexpr unsigned long count = sizeof...(Parameters);
  static constexpr unsigned long bytes[count + 1] = {sizeof(Parameters)...};
};

}  // namespace octavo::cuda_emulator

inline void __syncwarp(unsigned mask = 0xFFFFFFFFU) {
  octavo_emulated_lanes->meet(octavo::cuda_emulator::Primitive::wait, mask, 0);
}
inline unsigned __ballot_sync(unsigned mask, bool flag) {
  return octavo::cuda_emulator::ballot(octavo::cuda_emulator::Primitive::ballot, mask, flag);
}
inline int __any_sync(unsigned mask, bool flag) {
  return octavo::cuda_emulator::ballot(octavo::cuda_emulator::Primitive::any, mask, flag) != 0;
}
template <class Value>
Value __shfl_sync(unsigned mask, Value own, int lane) {
  return octavo::cuda_emulator::shuffled(octavo::cuda_emulator::Primitive::shuffle, mask, own,
                                         [&](unsigned) { return static_cast<unsigned>(lane) % 32; });
}
template <class Value>
Value __shfl_down_sync(unsigned mask, Value own, unsigned distance) {
  return octavo::cuda_emulator::shuffled(octavo::cuda_emulator::Primitive::shuffle_down, mask, own,
                                         [&](unsigned lane) { return lane + distance; });
}
template <class Value>
Value __shfl_xor_sync(unsigned mask, Value own, int distance) {
  return octavo::cuda_emulator::shuffled(octavo::cuda_emulator::Primitive::shuffle_xor, mask, own,
                                         [&](unsigned lane) { return lane ^ static_cast<unsigned>(distance); });
}
inline unsigned __reduce_or_sync(unsigned mask, unsigned own) {
  const std::uint64_t* const all = octavo_emulated_lanes->meet(octavo::cuda_emulator::Primitive::reduce_or, mask, own);
  unsigned together = 0;
  for (unsigned lane = 0; lane < 32; ++lane) together |= static_cast<unsigned>(all[lane]);
  return together;
}
inline unsigned __reduce_max_sync(unsigned mask, unsigned own) {
  const std::uint64_t* const all = octavo_emulated_lanes->meet(octavo::cuda_emulator::Primitive::reduce_max, mask, own);
  unsigned largest = 0;
  for (unsigned lane = 0; lane < 32; ++lane) largest = all[lane] > largest ? static_cast<unsigned>(all[lane]) : largest;
  return largest;
}

// The threads of a block run one after another between two primitives, and blocks one after another.
inline unsigned atomicOr(unsigned* word, unsigned bits) {
  const unsigned before = *word;
  *word |= bits;
  return before;
}

inline int __popc(unsigned word) { return __builtin_popcount(word); }
inline int __ffsll(long long word) { return __builtin_ffsll(word); }
