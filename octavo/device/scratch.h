// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "octavo/export.h"

/// Memory between a device's kernels and the network, which sends and receives memory of the host. Buffers are kept
/// from use to use. A buffer that has to grow loses what it held.
namespace octavo {

/// Makes the buffer at least `bytes` bytes of memory that torch allocates on the device, and returns its address.
OCTAVO_API std::uint8_t* reserve_on_device(at::Tensor& buffer, std::uint64_t bytes, c10::Device device);

/// Makes the buffer at least `bytes` bytes of the host's memory, a CPU tensor, that the device's kernels read and write
/// too. The memory is page-locked by that device's driver; it is ordinary memory where the device is the CPU.
OCTAVO_API std::uint8_t* reserve_on_host(at::Tensor& buffer, std::uint64_t bytes, c10::Device device);

/// Do the same for `count` values.
template <class Value>
Value* reserve_on_device(at::Tensor& buffer, std::uint64_t count, c10::Device device) {
  return reinterpret_cast<Value*>(reserve_on_device(buffer, count * sizeof(Value), device));
}
template <class Value>
Value* reserve_on_host(at::Tensor& buffer, std::uint64_t count, c10::Device device) {
  return reinterpret_cast<Value*>(reserve_on_host(buffer, count * sizeof(Value), device));
}

/// Returns a word of the host's memory, set to 0, that the device's kernels write (reserve_on_host).
OCTAVO_API std::uint32_t* cleared_word(at::Tensor& buffer, c10::Device device);

/// Returns the elements at an address of the device as a tensor, which does not own them. The address may lie anywhere
/// inside an allocation: torch is told the device, which it could find out only from the allocation's start.
OCTAVO_API at::Tensor elements_at(const void* data, at::ScalarType dtype, std::uint64_t count, c10::Device device);
/// The same for float32.
OCTAVO_API at::Tensor floats_at(const float* data, std::uint64_t count, c10::Device device);

/// Reads (writes), on the host, a word at any address of memory that the device's kernels reach. Both functions wait
/// for the device's current stream.
OCTAVO_API std::uint32_t read_word(const std::uint8_t* from, c10::Device device);
OCTAVO_API void write_word(std::uint8_t* to, std::uint32_t word, c10::Device device);

/// A device's floats for one call. On the CPU the calling thread keeps their memory, `kept_by_thread`, from call to
/// call. On another device the memory comes from the stream's pool and goes back in the stream's order.
class OCTAVO_API ScratchFloats {
 public:
  ScratchFloats(c10::Device device, std::uint64_t count, at::Tensor& kept_by_thread);
  float* data() const { return data_; }

 private:
  at::Tensor own_;
  float* data_;
};

/// Waits at the end of its scope, however that is left, until no kernel of the device's current stream uses a buffer
/// any more. After an error the memory may go to whoever asks next.
class OCTAVO_API WaitAtEnd {
 public:
  explicit WaitAtEnd(c10::Device device) : device_(device) {}
  ~WaitAtEnd();
  WaitAtEnd(const WaitAtEnd&) = delete;
  WaitAtEnd& operator=(const WaitAtEnd&) = delete;

 private:
  c10::Device device_;
};

}  // namespace octavo
