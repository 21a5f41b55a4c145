// SPDX-License-Identifier: Apache-2.0
#include "octavo/comm/shared/copy_bytes.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cstring>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace octavo {

namespace {

using Copy = void (*)(std::uint8_t* to, const std::uint8_t* from, std::uint64_t bytes);

void copy_cached(std::uint8_t* to, const std::uint8_t* from, std::uint64_t bytes) { std::memcpy(to, from, bytes); }

void copy_uncached(std::uint8_t* to, const std::uint8_t* from, std::uint64_t bytes) {
#if defined(__SSE2__)
  constexpr std::uint64_t kVector = sizeof(__m128i), kLine = 4 * kVector;
  const std::uint64_t before = std::min(bytes, (kLine - reinterpret_cast<std::uintptr_t>(to) % kLine) % kLine);
  std::memcpy(to, from, before);
  std::uint64_t at = before;
  for (; at + kLine <= bytes; at += kLine) {
    for (std::uint64_t part = at; part < at + kLine; part += kVector) {
      const __m128i values = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + part));
      _mm_stream_si128(reinterpret_cast<__m128i*>(to + part), values);
    }
  }
  std::memcpy(to + at, from + at, bytes - at);
  _mm_sfence();  // before others are told that the bytes are there
#else
  copy_cached(to, from, bytes);
#endif
}

void copy_by_threads(Copy copy, void* to, const void* from, std::uint64_t bytes) {
  constexpr std::int64_t kGrain = 1 << 20;
  at::parallel_for(0, static_cast<std::int64_t>(bytes), kGrain, [&](std::int64_t first, std::int64_t last) {
    copy(static_cast<std::uint8_t*>(to) + first, static_cast<const std::uint8_t*>(from) + first,
         static_cast<std::uint64_t>(last - first));
  });
}

}  // namespace

void copy_out(void* to, const void* from, std::uint64_t bytes) {
  constexpr std::uint64_t kLarge = 1U << 22;
  copy_by_threads(bytes < kLarge ? copy_cached : copy_uncached, to, from, bytes);
}

void copy_in(void* to, const void* from, std::uint64_t bytes) { copy_by_threads(copy_cached, to, from, bytes); }

}  // namespace octavo
