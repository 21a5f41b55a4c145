// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/Device.h>

#include "octavo/export.h"
#include "octavo/kernels/runtime.h"

/// The devices of the torch device `sycl`, numbered from 0, and the thread's current one. Thread-safe.
namespace octavo::sycl_device {

inline constexpr c10::DeviceType kType = c10::DeviceType::PrivateUse1;
inline constexpr int kMostDevices = 64;

/// Returns the back end's runtime. Throws Error unsupported, with the reason, where SYCL is missing and in a process
/// forked from one that used it. A call counts as a use of the device. Counting devices does not, because torch does so
/// in a program that stays on the CPU.
OCTAVO_API const DeviceRuntime& runtime();

/// Whether this process, or the one that it was forked from, used the device.
OCTAVO_API bool is_initialized() noexcept;
/// Whether this process was forked from one that had used the device: SYCL's threads do not exist there.
OCTAVO_API bool is_forked() noexcept;

/// Returns 0 where SYCL is missing.
OCTAVO_API c10::DeviceIndex device_count() noexcept;

/// Returns the same number in torch's type. Throws Error unsupported where SYCL is missing, Error invalid_argument
/// where there is no such device.
OCTAVO_API c10::DeviceIndex require_device(int device);

/// Returns what SYCL tells about a device; throws as require_device does.
OCTAVO_API DeviceFacts facts(int device);

OCTAVO_API c10::DeviceIndex current_device() noexcept;
OCTAVO_API void set_current_device(c10::DeviceIndex) noexcept;  // unchecked

}  // namespace octavo::sycl_device
