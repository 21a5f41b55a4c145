// SPDX-License-Identifier: Apache-2.0
#include <ATen/native/transformers/attention.h>
#include <ATen/ops/_fused_sdp_choice_native.h>

#include "octavo/device/sycl/operators.h"

namespace octavo::sycl_device {

/// scaled_dot_product_attention chooses as on the CPU, between its flash kernel and plain operators.
void register_attention() {
  at::native::_fused_sdp_choice_stub.set_privateuse1_dispatch_ptr(&at::native::_fused_sdp_choice_cpp);
}

}  // namespace octavo::sycl_device
