// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>

#include "octavo/device/arena.h"
#include "octavo/export.h"

namespace octavo {

/// Where state that is kept from step to step is stored.
struct StatePaging {
  bool is_paged = false;       // in managed memory (device/arena.h)
  std::string directory = {};  // of the files for the CPU's state; empty: there are no files
};

/// Makes the tensors of a StateStore. In managed memory they are brought to a device before they are used and return to
/// the host afterwards; on the CPU the system pages. The bits do not depend on where they are stored. Thread-safe.
class OCTAVO_API StateMemory {
 public:
  /// Throws Error invalid_argument for a directory without paging, and for a directory in which no file can be made.
  explicit StateMemory(StatePaging paging = {});

  /// Throws what Arena throws.
  at::Tensor empty(std::uint64_t count, at::ScalarType dtype, c10::Device device) const;
  /// Returns a copy of the values in memory of this object, flat.
  at::Tensor copy(const at::Tensor& values, c10::Device device) const;

  /// Both work on the device's current stream. Nothing happens for tensors that are not paged, nor on the CPU.
  void prefetch(const at::Tensor& tensor) const;
  void evict(const at::Tensor& tensor) const;

 private:
  std::shared_ptr<Arena> arena_on(c10::Device device) const;
  bool moves(const at::Tensor& tensor) const;

  bool is_paged_;
  std::shared_ptr<Arena> files_;  // null: there are no files
};

}  // namespace octavo
