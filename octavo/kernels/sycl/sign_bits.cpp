// SPDX-License-Identifier: Apache-2.0
#include "octavo/kernels/sycl/launch.h"
#include "octavo/kernels/sycl/table.h"

namespace octavo::sycl_backend {

void pack_sign_bits(Queue queue, const void* values, unsigned value_bytes, std::uint64_t count, std::uint8_t* bits) {
  const KernelName name{"sign_bits", "pack_sign_bits_" + std::to_string(value_bytes)};
  launch_spans(queue, name, count, values, count, bits);
}

void unpack_sign_bits(Queue queue, const std::uint8_t* bits, std::uint64_t count, float* values) {
  launch_spans(queue, {"sign_bits", "unpack_sign_bits"}, count, bits, count, values);
}

}  // namespace octavo::sycl_backend
