// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "octavo/export.h"

/// Memory between a device's kernels and the network, which sends and receives memory of the host. Buffers are kept
/// from use to use, and grow: what one held is lost then.
namespace octavo {

/// At least `bytes` bytes of the device's own memory.
OCTAVO_API std::uint8_t* reserve(at::Tensor& buffer, std::uint64_t bytes, c10::Device device);

/// At least `bytes` bytes of the host's memory, a CPU tensor, that the device's kernels read and write too: page-locked
/// by the device's driver, ordinary memory where the device is the CPU.
OCTAVO_API std::uint8_t* reserve_on_host(at::Tensor& buffer, std::uint64_t bytes, c10::Device device);

/// Blocks until the device's current stream has done what it was given: the host may then read what kernels wrote.
OCTAVO_API void wait_for_stream(c10::Device device);

}  // namespace octavo
