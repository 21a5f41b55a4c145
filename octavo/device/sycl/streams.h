// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/Stream.h>

#include "octavo/device/sycl/devices.h"

/// The streams of the torch device `sycl`: torch's numbers for the handles of the back end's DeviceRuntime. Stream 0 of
/// a device is its default. The others come from two pools of 32, one of them urgent. Each is made at its first use and
/// exists as long as the process. Each thread has current streams of its own. Thread-safe.
namespace octavo::sycl_device {

// All of these throw as `require_device` does, and Error invalid_argument for a stream that does not exist.
c10::Stream current_stream(c10::DeviceIndex);
c10::Stream default_stream(c10::DeviceIndex);
/// Returns the next stream of a pool; after 32 calls streams are shared.
c10::Stream stream_from_pool(c10::DeviceIndex, bool is_urgent);
/// Makes the stream the current one and returns the one before.
c10::Stream exchange_stream(c10::Stream);

Queue queue_of(c10::Stream);

/// Waits until the current stream of the device has nothing left to do: the host may then read and write its memory.
void settle(c10::DeviceIndex);
/// Waits for all streams of the device.
void synchronize(c10::DeviceIndex);

}  // namespace octavo::sycl_device
