// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Generator.h>

#include "octavo/export.h"

namespace octavo::sycl_device {

/// Makes a generator of the device. It draws from a CPU generator of its own, so that a seed gives the CPU's numbers.
at::Generator make_generator(c10::DeviceIndex);

/// Returns the device's default generator, which exists as long as the process.
OCTAVO_API const at::Generator& default_generator(c10::DeviceIndex);

/// Seeds the default generators of all devices. One that does not exist yet gets the seed when it is made.
OCTAVO_API void seed_default_generators(std::uint64_t seed);

/// Returns the CPU generator inside. Throws Error invalid_argument for a generator of another device.
at::Generator cpu_generator_of(const at::Generator&, c10::DeviceIndex);

}  // namespace octavo::sycl_device
