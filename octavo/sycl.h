// SPDX-License-Identifier: Apache-2.0
#pragma once

/// For code with SYCL kernels of its own: the queue that torch's work of a device goes to. Needs SYCL's headers and
/// -lsycl (octavo.build gives both with sycl=True); not part of <octavo/octavo.h>.
#include <c10/core/Device.h>

#include <sycl/sycl.hpp>

#include "octavo/device/dispatch.h"

namespace octavo {

/// The in-order queue behind the device's current stream, as dispatch.h says of sycl_queue(). A copy shares the queue.
/// Source: seed 000.
inline sycl::queue get_current_queue(c10::Device device) { return *static_cast<sycl::queue*>(sycl_queue(device).handle); }

}  // namespace octavo
