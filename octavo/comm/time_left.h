// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <chrono>

namespace octavo {

/// What is left of a timeout that several waits share, from its construction on.
class TimeLeft {
 public:
  explicit TimeLeft(std::chrono::milliseconds timeout) : end_(Clock::now() + timeout) {}

  /// At least 1 ms: to c10d 0 is no timeout.
  std::chrono::milliseconds operator()() const {
    using std::chrono::milliseconds;
    return std::max(std::chrono::duration_cast<milliseconds>(end_ - Clock::now()), milliseconds(1));
  }

 private:
  using Clock = std::chrono::steady_clock;

  Clock::time_point end_;
};

}  // namespace octavo
