// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>

namespace octavo {

/// Tells a clip of a burst of the gradient from the usual clip, and counts the steps whose results are clipped together
/// (Compressor::scale_step). Not thread-safe.
class ClipHistory {
 public:
  void begin_step() { has_buckets_ = is_counted_ = false; }
  void count_bucket() {
    if (std::exchange(has_buckets_, true)) return;
    ++steps_;
    is_counted_ = true;
  }
  /// Takes the current step, of which nothing was used, out of the count.
  void forget_step() {
    if (std::exchange(is_counted_, false)) --steps_;
  }

  /// Whether a clip by this factor is one of a burst.
  bool is_burst(double factor) const { return factor < kOfBurst * usual_factor_; }
  /// Takes note of a clip. Returns of how many steps it was.
  std::uint64_t add_clip(double factor) {
    usual_factor_ = std::max(factor, kFading * usual_factor_);
    return begin_count();
  }
  /// Begins to count steps anew. Returns how many there were.
  std::uint64_t begin_count() {
    is_counted_ = false;
    return std::exchange(steps_, 0);
  }

  /// The largest of the factors so far, where one from k clips ago is multiplied by 0.9^k; 0 before the first one.
  double usual_factor() const { return usual_factor_; }
  /// The steps with buckets since the last clip.
  std::uint64_t steps() const { return steps_; }
  /// Goes on from a saved history.
  void restore(double usual_factor, std::uint64_t steps) {
    *this = {};
    usual_factor_ = usual_factor;
    steps_ = steps;
  }

 private:
  static constexpr double kOfBurst = 0.5, kFading = 0.9;
  bool has_buckets_ = false, is_counted_ = false;  // the current step; whether steps_ counts it
  std::uint64_t steps_ = 0;
  double usual_factor_ = 0;
};

}  // namespace octavo
