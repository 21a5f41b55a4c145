// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "octavo/export.h"

/// Memory between a device's kernels and the network, which sends and receives memory of the host. Buffers are kept
/// from use to use, and grow: what one held is lost then.
namespace octavo {

/// At least `bytes` bytes of memory that torch allocates on the device.
OCTAVO_API std::uint8_t* reserve_on_device(at::Tensor& buffer, std::uint64_t bytes, c10::Device device);

/// At least `bytes` bytes of the host's memory, a CPU tensor, that the device's kernels read and write too: page-locked
/// by that device's driver, ordinary memory where the device is the CPU.
OCTAVO_API std::uint8_t* reserve_on_host(at::Tensor& buffer, std::uint64_t bytes, c10::Device device);

/// A word of the host's memory that the device's kernels write, as reserve_on_host has it; 0.
OCTAVO_API std::uint32_t* cleared_word(at::Tensor& buffer, c10::Device device);

/// Elements at an address of the device, which stay their owner's, as a tensor. The address may lie anywhere inside an
/// allocation: torch is told the device, which it could ask of the start of one alone.
OCTAVO_API at::Tensor elements_at(const void* data, at::ScalarType dtype, std::uint64_t count, c10::Device device);
OCTAVO_API at::Tensor floats_at(const float* data, std::uint64_t count, c10::Device device);

/// A word in memory that the device's kernels reach, at any address, read and written by the host: both wait for the
/// device's current stream.
OCTAVO_API std::uint32_t read_word(const std::uint8_t* from, c10::Device device);
OCTAVO_API void write_word(std::uint8_t* to, std::uint32_t word, c10::Device device);

/// Floats of a device for one call. On the CPU the calling thread keeps its memory, `kept_by_thread`, from call to
/// call; a device's memory comes from its stream's pool and goes back in the stream's order.
class OCTAVO_API ScratchFloats {
 public:
  ScratchFloats(c10::Device device, std::uint64_t count, at::Tensor& kept_by_thread);
  float* data() const { return data_; }

 private:
  at::Tensor own_;
  float* data_;
};

/// However its scope is left, no kernel of the device's current stream is at a buffer any more: after an error the
/// memory goes to who asks next.
class OCTAVO_API SettledAtEnd {
 public:
  explicit SettledAtEnd(c10::Device device) : device_(device) {}
  ~SettledAtEnd();
  SettledAtEnd(const SettledAtEnd&) = delete;
  SettledAtEnd& operator=(const SettledAtEnd&) = delete;

 private:
  c10::Device device_;
};

}  // namespace octavo
