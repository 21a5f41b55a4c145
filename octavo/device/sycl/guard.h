// SPDX-License-Identifier: Apache-2.0
#pragma once

/// What torch's device guards, stream guards and events do on the device `sycl`.
namespace octavo::sycl_device {

void register_guard();

}  // namespace octavo::sycl_device
