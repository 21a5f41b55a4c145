// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <limits>
#include <map>
#include <new>
#include <random>
#include <string_view>
#include <type_traits>
#include <vector>

#include "octavo/kernels/backend.h"

/// One set of tests for every back end. OCTAVO_BACKEND and OCTAVO_ISA choose the back end under test (the test runner
/// runs this suite once for each), and it must return the reference's bits.
namespace octavo::conformance {

inline const KernelTable& reference() { return backend("reference"); }
inline const KernelTable& tested() { return host_backend(); }

/// Whether arithmetic makes a NaN of its own of every NaN, as a GPU's does: results are then NaN where the reference's
/// are, with other bits. What is sent of a NaN by a codec with scales has the reference's bits everywhere.
inline bool has_one_nan() { return std::string_view(tested().name) == "cuda"; }

/// Whether kernels are compiled: a device compiles one for each kind of input, which takes a second or two.
inline bool compiles_kernels() { return tested().runtime != nullptr; }

/// Sizes around every group, lane and chunk boundary.
inline const std::vector<std::uint64_t> kCounts = {0,   1,   7,   8,   9,   15,   16,   17,   63,   64,   65,
                                                   127, 128, 255, 256, 257, 1000, 4095, 4096, 4097, 10007};
/// A size above which a back end may write around the caches.
constexpr std::uint64_t kLargeCount = (1U << 19) + 70;
/// Misalignments in elements; kernels must not require aligned memory.
inline const std::vector<std::uint64_t> kOffsets = {0, 1, 3, 7, 13};

/// Memory that starts at a vector's boundary, so that offset 0 is the aligned case.
template <class T>
struct Aligned {
  using value_type = T;
  static T* allocate(std::size_t count) {
    return static_cast<T*>(::operator new(count * sizeof(T), std::align_val_t{64}));
  }
  static void deallocate(T* memory, std::size_t) { ::operator delete(memory, std::align_val_t{64}); }
  bool operator==(const Aligned&) const { return true; }
};

/// Memory whose bytes before and after the writable part must not be touched by a kernel.
template <class T>
class Guarded {
 public:
  Guarded(std::uint64_t count, std::uint64_t offset = 0)
      : offset_(offset + kGuard), count_(count), all_(count + offset + 2 * kGuard) {
    std::memset(static_cast<void*>(all_.data()), 0xA5, all_.size() * sizeof(T));
  }
  T* data() { return all_.data() + offset_; }
  std::uint64_t count() const { return count_; }

  void expect_untouched_around() const {
    const auto* bytes = reinterpret_cast<const unsigned char*>(all_.data());
    const std::uint64_t begin = offset_ * sizeof(T), end = begin + count_ * sizeof(T);
    expect_untouched(bytes, 0, begin);
    expect_untouched(bytes, end, all_.size() * sizeof(T));
  }
  void expect_same_bits(Guarded& other) {
    ASSERT_EQ(count_, other.count_);
    if (count_ == 0 || std::memcmp(data(), other.data(), count_ * sizeof(T)) == 0) return;
    for (std::uint64_t i = 0; i < count_; ++i) {
      if constexpr (std::is_same_v<T, float>) {
        if (has_one_nan() && std::isnan(data()[i]) && std::isnan(other.data()[i])) continue;
      }
      ASSERT_EQ(std::memcmp(data() + i, other.data() + i, sizeof(T)), 0) << "first difference at element " << i;
    }
  }

 private:
  static void expect_untouched(const unsigned char* bytes, std::uint64_t begin, std::uint64_t end) {
    const auto* const touched =
        std::find_if(bytes + begin, bytes + end, [](unsigned char byte) { return byte != 0xA5; });
    ASSERT_EQ(touched, bytes + end) << "a byte outside the output was written, at " << touched - bytes;
  }

  // a multiple of a vector for any element type, so that offset 0 stays aligned
  static constexpr std::uint64_t kGuard = 64;
  std::uint64_t offset_, count_;
  std::vector<T, Aligned<T>> all_;
};

/// An endless sequence of values of many magnitudes, which include zeros of both signs and denormals.
class FiniteValues {
 public:
  explicit FiniteValues(std::uint64_t seed) : random_(seed) {}
  /// Returns its first `count` values. Drawn values are kept, because drawing takes longer than everything that is
  /// tested.
  std::vector<float> first(std::uint64_t count) {
    while (drawn_.size() < count) drawn_.push_back(draw());
    return {drawn_.begin(), drawn_.begin() + static_cast<std::ptrdiff_t>(count)};
  }

 private:
  float draw() {
    float value = normal_(random_) * std::pow(10.0F, static_cast<float>(random_() % 9) - 6.0F);
    if (random_() % 50 == 0) value = 0.0F;
    if (random_() % 50 == 0) value = -0.0F;
    if (random_() % 50 == 0) value = 1e-41F;
    return value;
  }

  std::mt19937_64 random_;
  std::normal_distribution<float> normal_;
  std::vector<float> drawn_;
};

inline std::vector<float> finite_values(std::uint64_t count, std::uint64_t seed) {
  static std::map<std::uint64_t, FiniteValues> by_seed;
  return by_seed.try_emplace(seed, seed).first->second.first(count);
}

inline const float kSpecials[] = {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
                                  std::nanf(""), -std::nanf("")};

/// Returns such values with NaNs of both signs and infinities among them.
inline std::vector<float> any_values(std::uint64_t count, std::uint64_t seed) {
  static std::map<std::uint64_t, std::vector<float>> by_seed;  // drawn values are kept, as above
  std::vector<float>& drawn = by_seed[seed];
  if (drawn.size() < count) {
    drawn = finite_values(count, seed);
    std::mt19937_64 random(seed + 1);
    for (auto& value : drawn) {
      if (random() % 97 == 0) value = kSpecials[random() % 4];
    }
  }
  return {drawn.begin(), drawn.begin() + static_cast<std::ptrdiff_t>(count)};
}

using Arrays = std::vector<Guarded<float>*>;

/// Fills each array with other finite values, which depend on its place in the list.
inline void put_finite(const Arrays& arrays) {
  std::uint64_t seed = 3;
  for (Guarded<float>* one : arrays) std::copy_n(finite_values(one->count(), seed++).data(), one->count(), one->data());
}

/// Puts NaNs of both signs and infinities into arrays of the same count. At each index at most one array has one: of
/// two NaNs an operation returns either, as the compiler has ordered them.
inline void put_specials(const Arrays& arrays) {
  std::uint64_t put = 0;
  for (std::uint64_t i = 3; i < arrays[0]->count(); i += 29, ++put) {
    arrays[put % arrays.size()]->data()[i] = kSpecials[put / arrays.size() % std::size(kSpecials)];
  }
}

/// Checks that arrays have the bits of others, in their order, and that nothing was written around them.
inline void expect_same_arrays(const Arrays& got, const Arrays& expected) {
  for (std::size_t i = 0; i < got.size(); ++i) {
    got[i]->expect_same_bits(*expected[i]);
    got[i]->expect_untouched_around();
  }
}

/// Checks that decode(table, how, out, nonfinite) writes the reference's results and nothing else, for every way in
/// which results are stored.
template <class Decode>
void expect_same_results(std::uint64_t count, std::uint64_t offset, Decode decode) {
  const std::vector<float> before = finite_values(count, 14);
  for (const Store how : {Store::assign, Store::add, Store::uncached}) {
    Guarded<float> want(count, 0), have(count, offset);
    std::copy_n(before.data(), count, want.data());
    std::copy_n(before.data(), count, have.data());
    std::uint32_t wanted_nonfinite = 0, nonfinite = 0;
    decode(reference(), how, want.data(), &wanted_nonfinite);
    decode(tested(), how, have.data(), &nonfinite);
    have.expect_same_bits(want);
    have.expect_untouched_around();
    ASSERT_EQ(nonfinite, wanted_nonfinite);
  }
}

}  // namespace octavo::conformance
