// SPDX-License-Identifier: Apache-2.0
#pragma once

/// What torch asks of an accelerator besides guards: its generators, pinned memory, whether it is there.
namespace octavo::sycl_device {

void register_hooks();

}  // namespace octavo::sycl_device
