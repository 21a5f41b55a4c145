// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <chrono>

namespace octavo {

/// Returns the timeout, or a century where it is longer. No clock can add a timeout such as milliseconds::max(), by
/// which programs say that they do not want any.
constexpr std::chrono::milliseconds at_most_a_century(std::chrono::milliseconds timeout) {
  return std::min<std::chrono::milliseconds>(timeout, std::chrono::years(100));
}

/// Returns when a timeout ends that begins now.
inline std::chrono::steady_clock::time_point end_of(std::chrono::milliseconds timeout) {
  return std::chrono::steady_clock::now() + at_most_a_century(timeout);
}

/// The rest of a timeout that several waits share, counted from the construction of this object.
class TimeLeft {
 public:
  explicit TimeLeft(std::chrono::milliseconds timeout) : end_(end_of(timeout)) {}

  /// Returns at least 1 ms, because to c10d 0 is no timeout.
  std::chrono::milliseconds operator()() const {
    using std::chrono::milliseconds;
    return std::max(std::chrono::duration_cast<milliseconds>(end_ - Clock::now()), milliseconds(1));
  }

 private:
  using Clock = std::chrono::steady_clock;

  Clock::time_point end_;
};

}  // namespace octavo
