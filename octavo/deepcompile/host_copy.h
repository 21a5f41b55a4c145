// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>

#include <memory>

#include "octavo/device/stream_event.h"

namespace octavo::dc {

c10::Stream current_stream_of(c10::Device device);
/// Waits for all work of the device; on the CPU there is none.
void synchronize(c10::Device device);

/// Copies between a device and the host on the stream that is the device's current one, behind what it has; returns the
/// mark of its end. `of_device`: the one of the two that is the device's, whose memory is not used again before that.
std::shared_ptr<StreamEvent> copy_on_stream(const at::Tensor& to, const at::Tensor& from, const at::Tensor& of_device);

}  // namespace octavo::dc
