// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "octavo/comm/contribution.h"
#include "octavo/device/scratch.h"

namespace octavo {

/// Some elements of a contribution as float32, to be encoded or to hold what was decoded. Where the gradient is
/// float32 they are these elements themselves, where it is of another dtype they are a copy. On the CPU the copy
/// belongs to the calling thread and, while parts are small, stays in its cache: a pass over the whole bucket in memory
/// would cost as much as a codec.
///
/// Work is done on the device's current stream and not waited for. A thread uses one part at a time.
class FloatPart {
 public:
  FloatPart(c10::Device device, const Contribution& tensor, std::uint64_t first, std::uint64_t count);

  /// Returns the values. A copy is undefined before load().
  float* data() const { return data_; }
  const float* load() const;
  /// Writes the values to where the elements lie, rounded to nearest.
  void store() const;
  bool is_copy() const { return copy_.has_value(); }

 private:
  c10::Device device_;
  at::Tensor elements_;
  std::optional<ScratchFloats> copy_;
  float* data_;
};

/// Loads `rows` runs of `count` elements as float32 into `to`, memory of the device, one run after the other. The first
/// run starts at element `first`; the starts of the runs are `stride` elements apart.
void load_rows(c10::Device device, const Contribution& tensor, std::uint64_t first, std::uint64_t rows,
               std::uint64_t count, std::uint64_t stride, float* to);

}  // namespace octavo
