// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/Stream.h>

#include "octavo/device/sycl/devices.h"

/// The streams of the torch device `sycl`: torch's numbers upon the handles of the back end's DeviceRuntime. A device's
/// stream 0 is its default, the others come from two pools of 32, one of them urgent; each is made at its first use and
/// lives as long as the process. Current streams are the thread's own. Thread-safe.
namespace octavo::sycl_device {

// All of these throw as `require_device` does, and Error invalid_argument for a stream that is not there.
c10::Stream current_stream(c10::DeviceIndex);
c10::Stream default_stream(c10::DeviceIndex);
/// The next of a pool; after 32 calls streams are shared.
c10::Stream stream_from_pool(c10::DeviceIndex, bool is_urgent);
/// Returns the one before.
c10::Stream exchange_stream(c10::Stream);

Queue queue_of(c10::Stream);

/// Waits until the current stream of the device has nothing left to do: the host may then read and write its memory.
void settle(c10::DeviceIndex);
/// Waits for all streams of the device.
void synchronize(c10::DeviceIndex);

}  // namespace octavo::sycl_device
