// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Generator.h>

#include "octavo/export.h"

namespace octavo::sycl_device {

/// A generator of the device; draws from a CPU generator of its own, so that a seed gives the CPU's numbers.
at::Generator make_generator(c10::DeviceIndex);

/// The device's default generator. Lives as long as the process.
OCTAVO_API const at::Generator& default_generator(c10::DeviceIndex);

/// Of all devices; of those that were not looked for yet, once they are.
OCTAVO_API void seed_default_generators(std::uint64_t seed);

/// The CPU generator inside. Throws Error invalid_argument for a generator of another device.
at::Generator cpu_generator_of(const at::Generator&, c10::DeviceIndex);

}  // namespace octavo::sycl_device
