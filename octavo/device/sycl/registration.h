// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "octavo/export.h"

namespace octavo {

/// Makes the torch device `sycl`, in torch's place for a device from outside: its name, allocators, guards and
/// operators. No device is looked for, nothing is compiled. Called once, before the device's first use; later calls
/// change nothing. Throws torch's error where another library holds that place.
OCTAVO_API void register_sycl_device();

}  // namespace octavo
