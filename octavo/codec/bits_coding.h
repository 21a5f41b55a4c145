// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "octavo/codec/codec.h"
#include "octavo/export.h"

namespace octavo {

/// The codec for bits that are not floats; four bytes are one value. The codecs of floats multiply, which changes the
/// bits of some NaNs. For gathering only: values have no weights, decode() assigns, and nobody may ask whether all
/// values are finite (Error unsupported).
class OCTAVO_API BitsCoding final : public Codec {
 public:
  BitsCoding();

  std::uint64_t payload_bytes(std::uint64_t count) const override { return sizeof(std::uint32_t) * count; }
  void encode(c10::Device device, const EncodeInput& input, const PayloadPart& to,
              rules::Residual* next_residual) const override;
  void decode(c10::Device device, const PayloadPart& from, Store store, float* out,
              std::uint32_t* nonfinite) const override;
};

}  // namespace octavo
