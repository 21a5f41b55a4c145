// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <new>
#include <random>
#include <vector>

#include "octavo/kernels/backend.h"

/// One body for every back end: what is under test is what OCTAVO_BACKEND and OCTAVO_ISA choose (the test runner
/// runs this suite once for each), and it must return the bits that the reference returns.
namespace octavo::conformance {

inline const KernelTable& reference() { return backend("reference"); }
inline const KernelTable& tested() { return host_backend(); }

/// Sizes around every group, lane and chunk boundary.
inline const std::vector<std::uint64_t> kCounts = {0,   1,   7,   8,   9,   15,   16,   17,   63,   64,   65,
                                                   127, 128, 255, 256, 257, 1000, 4095, 4096, 4097, 10007};
/// A size from which a back end may write around the caches.
constexpr std::uint64_t kLargeCount = (1U << 19) + 70;
/// Misalignments in elements: no kernel may need aligned memory.
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

/// Bytes that a kernel must not touch lie before and after the part that it may write.
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
    for (std::uint64_t i = 0; i < all_.size() * sizeof(T); ++i) {
      const bool inside = i >= offset_ * sizeof(T) && i < (offset_ + count_) * sizeof(T);
      if (inside) continue;
      ASSERT_EQ(bytes[i], 0xA5) << "a byte outside the output was written, at " << i;
    }
  }
  void expect_same_bits(Guarded& other) {
    ASSERT_EQ(count_, other.count_);
    for (std::uint64_t i = 0; i < count_; ++i) {
      ASSERT_EQ(std::memcmp(data() + i, other.data() + i, sizeof(T)), 0) << "first difference at element " << i;
    }
  }

 private:
  static constexpr std::uint64_t kGuard = 64;  // of any element a multiple of a vector: offset 0 stays aligned
  std::uint64_t offset_, count_;
  std::vector<T, Aligned<T>> all_;
};

/// Values of many magnitudes with zeros of both signs and denormals among them.
inline std::vector<float> finite_values(std::uint64_t count, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (auto& value : values) {
    value = normal(random) * std::pow(10.0F, static_cast<float>(random() % 9) - 6.0F);
    if (random() % 50 == 0) value = 0.0F;
    if (random() % 50 == 0) value = -0.0F;
    if (random() % 50 == 0) value = 1e-41F;
  }
  return values;
}

/// The same with NaNs of both signs and infinities.
inline std::vector<float> any_values(std::uint64_t count, std::uint64_t seed) {
  auto values = finite_values(count, seed);
  std::mt19937_64 random(seed + 1);
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const float special[] = {kInfinity, -kInfinity, std::nanf(""), -std::nanf("")};
  for (auto& value : values) {
    if (random() % 97 == 0) value = special[random() % 4];
  }
  return values;
}

}  // namespace octavo::conformance
