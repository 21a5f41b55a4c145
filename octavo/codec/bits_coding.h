// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "octavo/codec/codec.h"
#include "octavo/export.h"

namespace octavo {

/// Any bits, four bytes as one value, for what floats do not hold: the codecs of floats multiply, which changes the
/// bits of some NaNs. Only to be gathered: without weights, and decoded by assignment, of which nobody asks whether all
/// is finite (Error unsupported).
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
