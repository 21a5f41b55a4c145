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

using CopyBytes = void (*)(std::uint8_t* to, const std::uint8_t* from, std::uint64_t bytes);

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

/// Calls copy(first, bytes) for the parts of all `bytes`, one for each thread.
template <typename Copy>
void by_threads(std::uint64_t bytes, const Copy& copy) {
  constexpr std::int64_t kGrain = 1 << 20;
  at::parallel_for(0, static_cast<std::int64_t>(bytes), kGrain, [&](std::int64_t first, std::int64_t last) {
    copy(static_cast<std::uint64_t>(first), static_cast<std::uint64_t>(last - first));
  });
}

CopyBytes copy_out_of(std::uint64_t bytes) {
  constexpr std::uint64_t kLarge = 1U << 22;
  return bytes < kLarge ? copy_cached : copy_uncached;
}

std::uint8_t* bytes_at(void* memory) { return static_cast<std::uint8_t*>(memory); }
const std::uint8_t* bytes_at(const void* memory) { return static_cast<const std::uint8_t*>(memory); }

}  // namespace

void copy_out(void* to, const void* from, std::uint64_t bytes) {
  const CopyBytes copy = copy_out_of(bytes);
  by_threads(bytes, [&](std::uint64_t first, std::uint64_t count) {
    copy(bytes_at(to) + first, bytes_at(from) + first, count);
  });
}

void copy_in(void* to, const void* from, std::uint64_t bytes) {
  by_threads(bytes, [&](std::uint64_t first, std::uint64_t count) {
    copy_cached(bytes_at(to) + first, bytes_at(from) + first, count);
  });
}

void copy_in_and_out(void* in, void* out, const void* from, std::uint64_t bytes) {
  constexpr std::uint64_t kPart = 1U << 14;  // stays in the first cache between the two
  const CopyBytes copy = copy_out_of(bytes);
  by_threads(bytes, [&](std::uint64_t first, std::uint64_t count) {
    for (std::uint64_t at = first; at < first + count; at += kPart) {
      const std::uint64_t part = std::min(kPart, first + count - at);
      copy_cached(bytes_at(in) + at, bytes_at(from) + at, part);
      copy(bytes_at(out) + at, bytes_at(from) + at, part);
    }
  });
}

}  // namespace octavo
