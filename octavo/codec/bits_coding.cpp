// SPDX-License-Identifier: Apache-2.0
#include "octavo/codec/bits_coding.h"

#include <ATen/ATen.h>

#include "octavo/device/scratch.h"
#include "octavo/kernels/error.h"

namespace octavo {

namespace {

constexpr std::uint64_t kGranule = 64;

void copy_bits(c10::Device device, const void* from, void* to, std::uint64_t count) {
  const at::Tensor bits = elements_at(const_cast<void*>(from), at::kInt, count, device);
  elements_at(to, at::kInt, count, device).copy_(bits, /*non_blocking=*/true);
}

std::uint8_t* place_of(const PayloadPart& part) { return part.payload + sizeof(std::uint32_t) * part.part.first; }

}  // namespace

BitsCoding::BitsCoding() : Codec("bits", {.granule = kGranule, .leaves_error = false}) {}

void BitsCoding::encode(c10::Device device, const EncodeInput& input, const PayloadPart& to,
                        rules::Residual* next_residual) const {
  if (input.residual || input.momentum || input.others || next_residual) {
    fail(ErrorCode::unsupported, "codec.bits", "bits are sent as they are, and nothing is added to them");
  }
  copy_bits(device, input.gradient, place_of(to), to.part.count);
}

void BitsCoding::decode(c10::Device device, const PayloadPart& from, Store store, float* out,
                        std::uint32_t* nonfinite) const {
  if (store == Store::add || nonfinite) {
    fail(ErrorCode::unsupported, "codec.bits", "bits are no numbers that could be added, or be finite");
  }
  copy_bits(device, place_of(from), out, from.part.count);
}

}  // namespace octavo
