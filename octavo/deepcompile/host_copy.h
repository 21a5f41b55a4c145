// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>

#include <memory>

#include "octavo/device/stream_event.h"

namespace octavo::dc {

/// Waits for all work of the device; does nothing on the CPU.
void synchronize(c10::Device device);

/// Copies between a device and the host on the device's current stream, behind the work that this has. Returns the mark
/// of the copy's end. `of_device` is the one of the two that is on the device; its memory is not used again before the
/// mark.
std::shared_ptr<StreamEvent> copy_on_stream(const at::Tensor& to, const at::Tensor& from, const at::Tensor& of_device);

}  // namespace octavo::dc
