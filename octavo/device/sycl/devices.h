// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/Device.h>

#include "octavo/export.h"
#include "octavo/kernels/runtime.h"

/// The devices of the torch device `sycl`, by number from 0, and which is the thread's current one. Thread-safe.
namespace octavo::sycl_device {

inline constexpr c10::DeviceType kType = c10::DeviceType::PrivateUse1;
inline constexpr int kMostDevices = 64;

/// Throws Error unsupported, with the reason, where SYCL is missing and in a process forked from one that used it. A
/// call counts as a use of the device; counting devices does not: torch does so in a program that stays on the CPU.
OCTAVO_API const DeviceRuntime& runtime();

/// Whether this process, or the one that it was forked from, used the device.
OCTAVO_API bool is_initialized() noexcept;
/// Whether this process was forked from one that had used the device: SYCL's threads do not exist there.
OCTAVO_API bool is_forked() noexcept;

/// 0 where SYCL is missing.
OCTAVO_API c10::DeviceIndex device_count() noexcept;

/// The same number in torch's type. Throws Error: unsupported where SYCL is missing, invalid_argument where the device
/// is not there.
OCTAVO_API c10::DeviceIndex require_device(int device);

/// What SYCL tells of a device; throws as require_device does.
OCTAVO_API DeviceFacts facts(int device);

OCTAVO_API c10::DeviceIndex current_device() noexcept;
OCTAVO_API void set_current_device(c10::DeviceIndex) noexcept;  // unchecked

}  // namespace octavo::sycl_device
