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
  void begin_step() { has_buckets_ = is_counted_ = is_clipped_ = false; }
  void count_bucket() {
    if (std::exchange(has_buckets_, true)) return;
    ++steps_;
    is_counted_ = true;
  }
  /// Takes the current step, of which nothing was used, out of the count.
  void forget_step() {
    if (std::exchange(is_counted_, false)) --steps_;
  }

  struct Clip {
    bool is_of_burst;
    std::uint64_t steps;  // that are clipped together
  };
  /// Takes note of a clip. Several clips between two calls of begin_step() are one, by the product of their factors.
  Clip add_clip(double factor) {
    if (!std::exchange(is_clipped_, true)) {
      usual_before_ = usual_factor_;
      factor_ = 1;
      clipped_steps_ = begin_count();
    }
    factor_ *= factor;
    usual_factor_ = std::max(factor_, kFading * usual_before_);
    return {factor_ < kBurstRatio * usual_before_, clipped_steps_};
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
  static constexpr double kBurstRatio = 0.5, kFading = 0.9;
  bool has_buckets_ = false, is_counted_ = false;  // the current step; whether steps_ counts it
  std::uint64_t steps_ = 0;
  double usual_factor_ = 0;
  // of the clip since the last begin_step(); usual_before_ is the usual factor before it
  bool is_clipped_ = false;
  double factor_ = 1, usual_before_ = 0;
  std::uint64_t clipped_steps_ = 0;
};

}  // namespace octavo
