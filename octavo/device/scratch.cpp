// SPDX-License-Identifier: Apache-2.0
#include "octavo/device/scratch.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/DeviceGuard.h>

#include <cstring>

#include "octavo/device/dispatch.h"
#include "octavo/device/pinned.h"

namespace octavo {

namespace {

bool has_room(const at::Tensor& buffer, std::int64_t bytes) { return buffer.defined() && buffer.numel() >= bytes; }

/// Copies after what the device's current stream was given, and waits. Either side may be memory of the host, which
/// torch's own copies take for what their tensor's device says.
void copy_at_once(void* to, const void* from, std::uint64_t bytes, c10::Device device) {
  if (device.is_cpu()) {
    std::memcpy(to, from, bytes);
    return;
  }
  const LaunchScope launch(device);
  launch.kernels().runtime->copy(launch.queue(), to, from, bytes);
  launch.kernels().runtime->wait(launch.queue());
}

}  // namespace

std::uint8_t* reserve_on_device(at::Tensor& buffer, std::uint64_t bytes, c10::Device device) {
  const auto size = static_cast<std::int64_t>(bytes);
  if (!has_room(buffer, size)) buffer = at::empty({size}, at::TensorOptions(at::kByte).device(device));
  return buffer.mutable_data_ptr<std::uint8_t>();
}

std::uint8_t* reserve_on_host(at::Tensor& buffer, std::uint64_t bytes, c10::Device device) {
  if (device.is_cpu()) return reserve_on_device(buffer, bytes, device);
  constexpr std::int64_t kAnyAlignment = 1;
  const auto size = static_cast<std::int64_t>(bytes);
  if (!has_room(buffer, size)) {
    wait_for_current_stream(device);           // kernels may still use the smaller buffer
    const c10::DeviceGuard on_device(device);  // the pinned allocator asks the current device's driver
    buffer = pinned_zeros({size}, at::kByte, kAnyAlignment, device.type());
  }
  return buffer.mutable_data_ptr<std::uint8_t>();
}

std::uint32_t* cleared_word(at::Tensor& buffer, c10::Device device) {
  auto* const word = reinterpret_cast<std::uint32_t*>(reserve_on_host(buffer, sizeof(std::uint32_t), device));
  *word = 0;
  return word;
}

at::Tensor elements_at(const void* data, at::ScalarType dtype, std::uint64_t count, c10::Device device) {
  const auto size = static_cast<std::int64_t>(count);
  return at::for_blob(const_cast<void*>(data), size)
      .options(at::TensorOptions(dtype).device(device))
      .target_device(device)
      .make_tensor();
}

at::Tensor floats_at(const float* data, std::uint64_t count, c10::Device device) {
  return elements_at(data, at::kFloat, count, device);
}

std::uint32_t read_word(const std::uint8_t* from, c10::Device device) {
  std::uint32_t word = 0;
  copy_at_once(&word, from, sizeof word, device);
  return word;
}

void write_word(std::uint8_t* to, std::uint32_t word, c10::Device device) {
  copy_at_once(to, &word, sizeof word, device);
}

ScratchFloats::ScratchFloats(c10::Device device, std::uint64_t count, at::Tensor& kept_by_thread)
    : data_(reinterpret_cast<float*>(
          reserve_on_device(device.is_cpu() ? kept_by_thread : own_, count * sizeof(float), device))) {}

WaitAtEnd::~WaitAtEnd() {
  try {
    wait_for_current_stream(device_);
  } catch (...) {  // the device is lost, and with it what it would have written
  }
}

}  // namespace octavo
