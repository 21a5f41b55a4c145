// SPDX-License-Identifier: Apache-2.0
#include "octavo/comm/schedule/gradient_power.h"

#include <algorithm>
#include <limits>

#include "octavo/rules/float_bits.h"

namespace octavo {

namespace {

constexpr std::uint64_t kChunk = 256;
/// From this size on only every 32nd chunk is read: a scale needs no more, and memory is slow.
constexpr std::uint64_t kSampledCount = 1U << 16;
constexpr std::uint64_t kSampledStride = 32 * kChunk;

/// The power of what is not zero: a normal number, which stays one where denormals are flushed to zero.
constexpr float kSmallest = std::numeric_limits<float>::min();

double square_sum(const float* values, std::uint64_t count) {
  float lanes[16] = {};  // a chain of additions would wait for each; sixteen run at once
  for (std::uint64_t i = 0; i < count; i += 16) {
    const std::uint64_t row = std::min<std::uint64_t>(16, count - i);
    for (std::uint64_t j = 0; j < row; ++j) lanes[j] += values[i + j] * values[i + j];
  }
  double sum = 0;
  for (const float lane : lanes) sum += static_cast<double>(lane);
  return sum;
}

void prefetch(const float* values) {
  constexpr std::uint64_t kCacheLine = 16;
  for (std::uint64_t i = 0; i < kChunk; i += kCacheLine) __builtin_prefetch(values + i);
}

bool any_nonzero(const float* values, std::uint64_t count) {
  for (std::uint64_t first = 0; first < count; first += kChunk) {
    std::uint32_t seen = 0;
    for (std::uint64_t i = first; i < std::min(count, first + kChunk); ++i) seen |= rules::magnitude_bits(values[i]);
    if (seen != 0) return true;
  }
  return false;
}

}  // namespace

float gradient_power(const float* values, std::uint64_t count) {
  const std::uint64_t stride = count < kSampledCount ? kChunk : kSampledStride;
  double sum = 0;
  std::uint64_t taken = 0;
  for (std::uint64_t first = 0; first < count; first += stride) {
    if (stride == kSampledStride) prefetch(values + first + stride);  // no hardware foresees these strides
    const std::uint64_t size = std::min(count - first, kChunk);
    sum += square_sum(values + first, size);
    taken += size;
  }
  const float power = taken == 0 ? 0.0F : static_cast<float>(sum / static_cast<double>(taken));
  if (power != 0) return std::max(power, kSmallest);
  return any_nonzero(values, count) ? kSmallest : 0.0F;
}

float mean_power(std::span<const float> powers) {
  double sum = 0;
  for (const float power : powers) sum += static_cast<double>(power);
  const auto mean = static_cast<float>(sum / static_cast<double>(powers.size()));
  return sum == 0 ? 0.0F : std::max(mean, kSmallest);
}

}  // namespace octavo
