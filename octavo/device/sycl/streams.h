// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/Stream.h>

#include "octavo/kernels/runtime.h"

/// The devices and streams of the torch device `sycl`: torch numbers upon the handles of the back end's DeviceRuntime.
/// A device's stream 0 is its default, the others come from two pools of 32, one of them urgent; each is made at its
/// first use and lives as long as the process. Current device and streams are the thread's own. Thread-safe.
namespace octavo::sycl_device {

inline constexpr c10::DeviceType kType = c10::DeviceType::PrivateUse1;

/// Throws Error unsupported, with the reason, where SYCL is missing and in a process forked from one that used it. Who
/// asks for it uses the device; to count devices is no use: torch does so in a program that stays on the CPU.
const DeviceRuntime& runtime();

/// Whether this process, or the one that it was forked from, used the device.
bool is_initialized() noexcept;
/// Whether this process was forked from one that had used the device: SYCL's threads are not there.
bool is_forked() noexcept;

/// 0 where SYCL is missing.
c10::DeviceIndex device_count() noexcept;

/// Throws Error: unsupported where SYCL is missing, invalid_argument where the device is not there.
void require_device(int device);

c10::DeviceIndex current_device() noexcept;
void set_current_device(c10::DeviceIndex) noexcept;  // unchecked

// All of these throw as `require_device` does, and Error invalid_argument for a stream that is not there.
c10::Stream current_stream(c10::DeviceIndex);
c10::Stream default_stream(c10::DeviceIndex);
/// The next of a pool; after 32 calls streams are shared.
c10::Stream stream_from_pool(c10::DeviceIndex, bool is_urgent);
/// Returns the one before.
c10::Stream exchange_stream(c10::Stream);

octavo::Stream queue_of(c10::Stream);

/// Waits until the current stream of the device has nothing left to do: the host may then read and write its memory.
void settle(c10::DeviceIndex);
/// Waits for all streams of the device.
void synchronize(c10::DeviceIndex);

}  // namespace octavo::sycl_device
