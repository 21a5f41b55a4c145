// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/Stream.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "octavo/kernels/runtime.h"

namespace octavo::sycl_device {

/// Where figures are kept apart: a device, whether its page-locked memory of the host.
using Place = std::pair<c10::DeviceIndex, bool>;

/// A piece of memory from the driver, used as a whole.
struct Block {
  c10::DeviceIndex device;
  MemoryKind kind;
  c10::StreamId stream;                    // whose work uses it
  std::uint64_t bytes, size;               // asked for, rounded
  std::vector<c10::Stream> other_streams;  // that use it too
  Place place() const { return {device, kind == MemoryKind::host}; }
};

/// The size of a block for that many bytes: the next multiple of 512, above 1 MiB of an eighth of the power of two
/// below, of 2 MiB at most.
std::uint64_t rounded_up(std::uint64_t bytes);
/// The largest size of a block that is no more than so many bytes.
std::uint64_t rounded_down(std::uint64_t bytes);

}  // namespace octavo::sycl_device
