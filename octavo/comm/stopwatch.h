// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>

namespace octavo {

/// Adds up the seconds between laps. Not thread-safe.
class Stopwatch {
 public:
  /// Adds the seconds since the last lap to `total`.
  void lap(double& total) {
    const auto now = std::chrono::steady_clock::now();
    total += std::chrono::duration<double>(now - last_).count();
    last_ = now;
  }

 private:
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
};

}  // namespace octavo
