// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>

#include "octavo/kernels/table.h"

/// The reference back end: each rule applied one element at a time. It defines what the others must return.
namespace octavo::reference {

#include "octavo/kernels/declarations.inc"

extern const KernelTable table;

/// Tells the caller of a decoder or of a step, which several threads may run at the same time, that something is not
/// finite.
inline void report(bool is_finite, std::uint32_t* nonfinite) {
  if (!is_finite && nonfinite) std::atomic_ref(*nonfinite).store(1, std::memory_order_relaxed);
}

}  // namespace octavo::reference
