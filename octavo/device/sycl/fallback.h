// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace octavo::sycl_device {

/// Gives the device every operator that the CPU has and that is not registered for the device yet, strided and sparse,
/// and a fallback for those that come later: all by call_on_cpu.
void register_fallback();

}  // namespace octavo::sycl_device
