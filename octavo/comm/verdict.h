// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "octavo/comm/wire.h"

namespace octavo {

/// Decides whether steps are finite, on all ranks alike. Ranks that see only the results of their own shards tell one
/// another. What they tell is sent after the buckets, and nobody waits for it before the step ends. Not thread-safe.
/// All ranks make the same calls in the same order.
class Verdict {
 public:
  /// `others`: the ranks that have other results; null: all ranks have the same ones.
  explicit Verdict(Wire* others) : others_(others) {}

  void begin_step() { is_under_way_ = true; }
  /// Says whether the results of a bucket are finite.
  void report(bool finite);
  /// Waits for what the others have reported so far. Throws what Wire throws; the step is then not finite.
  void collect();
  /// Ends the step and returns whether it was finite. If no step was begun after the last one ended, it judges only
  /// what was reported since then. Throws as collect() does, before the step has ended.
  bool end_step();
  /// Ends a step that was broken off; last_step_was_finite() is then false.
  void abandon_step();

  /// Whether all that was reported of the step under way is finite, on other ranks as far as collect() has heard.
  bool is_finite() const { return is_finite_; }
  bool last_step_was_finite() const { return last_was_finite_; }
  /// Returns how many steps were not finite, with the step under way as far as the others were heard.
  std::uint64_t nonfinite_steps() const { return nonfinite_steps_ + (is_finite_ ? 0 : 1); }

 private:
  Wire* others_;
  std::vector<std::pair<at::Tensor, Transfer>> reported_;  // per bucket: on how many ranks it is not finite
  bool is_under_way_ = false;
  bool is_finite_ = true;  // what was reported since the last step ended
  bool last_was_finite_ = true;
  std::uint64_t nonfinite_steps_ = 0;
};

}  // namespace octavo
