// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <chrono>

namespace octavo {

/// The rest of a timeout that several waits share, counted from the construction of this object.
class TimeLeft {
 public:
  explicit TimeLeft(std::chrono::milliseconds timeout) : end_(Clock::now() + timeout) {}

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
