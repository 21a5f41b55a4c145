// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <utility>

#include "octavo/comm/state/state_memory.h"
#include "octavo/export.h"

namespace octavo {

/// A flat tensor that is kept from step to step, in two generations, so that a step is a transaction: a step reads
/// `now` and writes `next`, and the step's end commits or rolls back. A step with a NaN anywhere is rolled back on
/// every rank and leaves no trace. Not thread-safe.
class OCTAVO_API Versioned {
 public:
  explicit Versioned(at::ScalarType dtype, std::shared_ptr<StateMemory> memory = std::make_shared<StateMemory>())
      : dtype_(dtype), memory_(std::move(memory)) {}

  /// Returns the values of the last commit, in the device's memory; null before the first one (all zeros).
  template <class T>
  const T* now(c10::Device device) {
    return static_cast<const T*>(now_bytes(device, sizeof(T)));
  }
  /// Returns the same, but makes zeros first where there are no values.
  template <class T>
  const T* now_or_zeros(std::uint64_t count, c10::Device device) {
    make_zeros_if_absent(count, device);
    return now<T>(device);
  }
  /// Returns memory of the device for the next values; every element must be written before commit().
  template <class T>
  T* next(std::uint64_t count, c10::Device device) {
    return static_cast<T*>(next_bytes(count, device, sizeof(T)));
  }

  void commit();
  void roll_back();
  void clear();

  /// Returns the values, [count], on the device where they were last used; undefined where there are none yet.
  const at::Tensor& tensor() const { return now_; }
  /// Returns what tensor() is if the step under way is committed.
  const at::Tensor& pending() const { return written_ ? next_ : now_; }
  /// `values`: of the dtype, made by the memory object.
  void restore(at::Tensor values);

  /// Where memory is paged: prefetch() moves both generations to their device, evict() back to the host (StateMemory).
  void prefetch() const;
  void evict() const;

 private:
  void make_zeros_if_absent(std::uint64_t count, c10::Device device);
  const void* now_bytes(c10::Device device, std::uint64_t element_bytes);
  void* next_bytes(std::uint64_t count, c10::Device device, std::uint64_t element_bytes);

  at::ScalarType dtype_;
  std::shared_ptr<StateMemory> memory_;
  at::Tensor now_, next_;
  bool written_ = false;
};

}  // namespace octavo
