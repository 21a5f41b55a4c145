// SPDX-License-Identifier: Apache-2.0
#pragma once

/// For code with SYCL kernels of its own: the queue to which torch's work of a device goes. Needs SYCL's headers and
/// -lsycl (octavo.build gives both with sycl=True). Not part of <octavo/octavo.h>.
#include <c10/core/Device.h>

#include <sycl/sycl.hpp>

#include "octavo/device/dispatch.h"
#include "octavo/kernels/error.h"

namespace octavo {

/// Returns the in-order queue behind the device's current stream, as sycl_queue() in dispatch.h does. A copy shares the
/// queue.
/// Source: seed 000.
inline sycl::queue get_current_queue(c10::Device device) {
  return *static_cast<sycl::queue*>(sycl_queue(device).handle);
}

}  // namespace octavo
