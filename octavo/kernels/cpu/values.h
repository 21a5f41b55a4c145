// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <type_traits>

#include "octavo/kernels/cpu/simd.h"

/// What the cpu codecs share: the values to encode, the loops over them, and how residuals and results are written.
namespace octavo::cpu::OCTAVO_ISA {

/// Sets values[i] to the value to encode at first + i, and those up to the end of the last group to zero. There is one
/// function for all codecs: the values stay in L1, and what an input may have need not be compiled into each codec.
void work_out(const EncodeInput& in, std::uint64_t first, std::uint64_t count, float* values);

/// Prefetches what a group further on will need, except `others`: their sum was written just now.
OCTAVO_INLINE void prefetch(const EncodeInput& in, std::uint64_t i) {
  prefetch_ahead(in.gradient + i);
  if (in.residual) prefetch_ahead(in.residual + i);
  if (in.momentum) prefetch_ahead(in.momentum + i);
  if (in.momentum) prefetch_ahead(in.preconditioner + i);
}

/// Does the same as work_out() where the caller prefetches group by group, between other work. Memory is then busy all
/// the time, not only while values are worked out.
void work_out_prefetched(const EncodeInput& in, std::uint64_t first, std::uint64_t count, float* values);

OCTAVO_INLINE std::uint64_t smaller(std::uint64_t a, std::uint64_t b) { return a < b ? a : b; }

/// The number of elements that stay in L1 from one loop to the next.
inline constexpr std::uint64_t kSpan = 1024;

inline constexpr float kZeros[kSpan] = {};

/// Returns the floats of a span, from element `first` on; zeros where `floats` is null.
OCTAVO_INLINE const float* floats_from(const float* floats, std::uint64_t first) {
  return floats ? floats + first : kZeros;
}

/// Calls visit(block_index, first, count) for every block.
template <class Visit>
OCTAVO_INLINE void for_each_block(std::uint64_t count, std::uint64_t block, Visit visit) {
  for (std::uint64_t first = 0, index = 0; first < count; first += block, ++index) {
    visit(index, first, smaller(block, count - first));
  }
}

/// Calls visit(first, count) for every group of `count` elements. The compiler knows the count of a whole group as a
/// constant, if the visitor takes it as `auto`.
template <class Visit>
OCTAVO_INLINE void for_each_group(std::uint64_t count, Visit visit) {
  const std::uint64_t whole = count - count % kGroup;
  for (std::uint64_t first = 0; first < whole; first += kGroup) {
    visit(first, std::integral_constant<std::uint64_t, kGroup>{});
  }
  if (whole < count) visit(whole, count - whole);
}

/// Returns the largest magnitude_bits of the values, which are zeros from `count` to the end of the last group.
OCTAVO_INLINE std::uint32_t largest_magnitude(const float* values, std::uint64_t count) {
  std::uint32_t largest = 0;
  for (std::uint64_t i = 0; i < count; i += kGroup) {
    for (std::uint64_t j = 0; j < kGroup; ++j) {
      const std::uint32_t bits = rules::magnitude_bits(values[i + j]);
      largest = bits > largest ? bits : largest;
    }
  }
  return largest;
}

/// Assigns values[i] to out[i], or adds it, for i in [0, count).
OCTAVO_INLINE void store(Store how, const float* values, std::uint64_t count, float* out) {
  if (how == Store::add) {
    for (std::uint64_t i = 0; i < count; ++i) out[i] += values[i];
  } else {
    for (std::uint64_t i = 0; i < count; ++i) out[i] = values[i];
  }
}

static_assert(kGroup == rules::kRandomGroup);

/// Calls visit(i, 16 random bits) for `count` elements, at most a group, from number `first` on. Nearly all calls are
/// for whole groups whose numbers begin at a multiple of kGroup: a word then serves two elements.
template <class Visit>
OCTAVO_INLINE void for_random_bits(std::uint64_t key, std::uint64_t first, std::uint64_t count, Visit visit) {
  if (count < kGroup || first % kGroup != 0) {
    for (std::uint64_t i = 0; i < count; ++i) visit(i, rules::random_bits(key, first + i));
    return;
  }
  const std::uint32_t base = rules::random_base(key, first / kGroup);
  for (std::uint32_t i = 0; i < rules::kRandomWords; ++i) {
    const std::uint32_t word = rules::random_word(base, i);
    visit(i, word & 0xFFFFU);
    visit(rules::kRandomWords + i, word >> 16);
  }
}

/// Where and how residuals are written.
struct ResidualOut {
  rules::Residual* next;  // residual of the input's first element; null: not wanted
  Store how;              // uncached: whole groups bypass the caches
  bool is_small = false;  // whether rules::to_residual_of_small() may round what is left over
};

/// Writes the residuals of up to a group of the input, from element `first` on. `left_over`: what the codes leave over.
OCTAVO_INLINE void store_residual(const ResidualOut& out, const EncodeInput& in, std::uint64_t first,
                                  const float* left_over, std::uint64_t count) {
  rules::Residual rounded[kGroup];
  const auto round_all = [&](auto round) {
    for_random_bits(in.rounding_key, in.first + first, count,
                    [&](std::uint64_t i, std::uint32_t random) { rounded[i] = round(left_over[i], random); });
  };
  if (out.is_small) {
    round_all([](float value, std::uint32_t random) { return rules::to_residual_of_small(value, random); });
  } else {
    round_all([](float value, std::uint32_t random) { return rules::to_residual(value, random); });
  }
  if (out.how == Store::uncached && count == kGroup) return stream_bytes<sizeof rounded>(rounded, out.next + first);
  std::memcpy(out.next + first, rounded, count * sizeof *rounded);
}

/// Writes values as what is left over, from element `first` of the input on; 0 for values that are not finite.
OCTAVO_INLINE void keep_residual(const ResidualOut& out, const EncodeInput& in, std::uint64_t first,
                                 const float* values, std::uint64_t count) {
  for_each_group(count, [&](std::uint64_t i, auto size) {
    float left_over[kGroup];
    for (std::uint64_t j = 0; j < size; ++j) left_over[j] = rules::left_over_of(values[i + j], 0.0F);
    store_residual(out, in, first + i, left_over, size);
  });
}

/// Writes up to a group. Where `how` is uncached, a whole group bypasses the caches.
OCTAVO_INLINE void store_part(Store how, const float* values, std::uint64_t count, float* out) {
  if (how == Store::uncached && count == kGroup) return stream_bytes<kGroup * sizeof(float)>(values, out);
  store(how, values, count, out);
}

/// Tells the caller of a decoder, which several threads may run at the same time, that something is not finite.
OCTAVO_INLINE void report(bool is_finite, std::uint32_t* nonfinite) {
  if (!is_finite && nonfinite) std::atomic_ref(*nonfinite).store(1, std::memory_order_relaxed);
}

/// Writes few values among zeros. Each chunk is made in L1 and, as long as the values come in order, written once.
class ChunkWriter {
 public:
  ChunkWriter(Store how, std::uint64_t size, float* out) : how_(how), size_(size), out_(out) {
    std::memset(chunk_, 0, sizeof chunk_);
  }
  void put(std::uint64_t i, float value) {
    while (i >= first_ + kChunk) flush();
    if (i >= first_) {
      chunk_[i - first_] = value;
    } else {  // no encoder makes such indices
      end_stream();
      out_[i] = value;
    }
  }
  void finish() {
    while (first_ < size_) flush();
  }

 private:
  void flush() {
    const std::uint64_t count = smaller(kChunk, size_ - first_);
    for_each_group(count, [&](std::uint64_t i, auto size) { store_part(how_, chunk_ + i, size, out_ + first_ + i); });
    std::memset(chunk_, 0, sizeof chunk_);
    first_ += kChunk;
  }

  static constexpr std::uint64_t kChunk = 1024;
  float chunk_[kChunk];
  Store how_;
  std::uint64_t size_, first_ = 0;
  float* out_;
};

/// Adds few values, or assigns them among zeros. visit_all(put) calls put(index, value) for each value. Returns whether
/// all values are finite.
template <class VisitAll>
OCTAVO_INLINE bool scatter(Store how, std::uint64_t size, float* out, VisitAll visit_all) {
  bool all_finite = true;
  if (how == Store::add) {
    visit_all([&](std::uint64_t i, float value) {
      all_finite &= rules::is_finite(value);
      out[i] += value;
    });
    return all_finite;
  }
  ChunkWriter writer(how, size, out);
  visit_all([&](std::uint64_t i, float value) {
    all_finite &= rules::is_finite(value);
    writer.put(i, value);
  });
  writer.finish();
  return all_finite;
}

/// Returns how a kernel writes `count` values that nobody reads soon.
OCTAVO_INLINE Store choose_store(std::uint64_t count) {
  return count >= kStreamCount ? Store::uncached : Store::assign;
}

/// Returns how a kernel writes `count` residuals. They are read a whole step later, when no cache holds them any more.
/// Small outputs, which are parts of large ones, therefore bypass the caches, too.
OCTAVO_INLINE Store choose_residual_store(std::uint64_t count) {
  return count >= kStreamCount / 64 ? Store::uncached : Store::assign;
}

/// Returns how a decode kernel follows the caller's wish: small outputs stay in the caches.
OCTAVO_INLINE Store choose_store(Store how, std::uint64_t count) {
  return how == Store::uncached ? choose_store(count) : how;
}

}  // namespace octavo::cpu::OCTAVO_ISA
