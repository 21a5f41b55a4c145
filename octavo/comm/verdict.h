// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <utility>
#include <vector>

#include "octavo/comm/wire.h"

namespace octavo {

/// Whether a step is finite on all ranks, where each sees the results of its own shard alone. Travels behind the
/// buckets: nobody waits for it before the step ends. Not thread-safe; all ranks call tell() in the same order.
class Verdict {
 public:
  explicit Verdict(Wire& wire) : wire_(wire) {}

  /// Starts to tell the others whether this rank's results are finite.
  void tell(bool finite);
  /// Whether all that the ranks told since the last call was finite. Throws what Wire throws; the step is then none.
  bool hear();
  /// Of a step that was broken off.
  void forget() { told_.clear(); }

 private:
  Wire& wire_;
  std::vector<std::pair<at::Tensor, Transfer>> told_;  // the number of ranks that found something else
};

}  // namespace octavo
