// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "octavo/export.h"
#include "octavo/rules/residual.h"

namespace octavo {

/// What could not be sent, kept to be sent later (EF14: Seide et al. 2014, Karimireddy et al. 2019).
///
/// Two generations, so that a step is a transaction: a step reads `now`, writes `next`, and the step's end commits or
/// rolls back. A step with a NaN anywhere is rolled back on every rank, and leaves no trace. Not thread-safe.
class OCTAVO_API Residual {
 public:
  /// The values that the next encoding adds, in the device's memory; null before the first commit (all zeros).
  const rules::Residual* now(c10::Device device);
  /// Memory of the device for the values that the encoding leaves over; every element must be written before commit().
  rules::Residual* next(std::uint64_t count, c10::Device device);

  void commit();
  void roll_back();
  void clear();

  /// bfloat16[count] where it was last used, or an undefined tensor where there is nothing yet.
  const at::Tensor& tensor() const { return now_; }
  void restore(at::Tensor values);

 private:
  at::Tensor now_, next_;
  bool written_ = false;
};

}  // namespace octavo
