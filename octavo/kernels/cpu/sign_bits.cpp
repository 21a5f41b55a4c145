// SPDX-License-Identifier: Apache-2.0
#include "octavo/rules/sign_bits.h"

#include "octavo/kernels/cpu/table.h"
#include "octavo/kernels/cpu/values.h"

namespace octavo::cpu::OCTAVO_ISA {

namespace {

template <class Word>
void pack(const Word* values, std::uint64_t count, std::uint8_t* bits) {
  const std::uint64_t whole = count - count % kGroup;
  for (std::uint64_t i = 0; i < whole; i += kGroup) {
    prefetch_ahead(values + i);
    const std::uint64_t packed = packed_signs(values + i);
    std::memcpy(bits + i / 8, &packed, sizeof packed);
  }
  pack_tail(values + whole, count - whole, bits + whole / 8);
}

}  // namespace

void pack_sign_bits(Stream, const void* values, unsigned value_bytes, std::uint64_t count, std::uint8_t* bits) {
  switch (value_bytes) {
    case 1: return pack(static_cast<const std::uint8_t*>(values), count, bits);
    case 2: return pack(static_cast<const std::uint16_t*>(values), count, bits);
    case 4: return pack(static_cast<const std::uint32_t*>(values), count, bits);
    default: return pack(static_cast<const std::uint64_t*>(values), count, bits);
  }
}

void unpack_sign_bits(Stream, const std::uint8_t* bits, std::uint64_t count, float* values) {
  const std::uint64_t whole = count - count % kGroup;
  const Store how = choose_store(count);
  float group[kGroup];
  for (std::uint64_t i = 0; i < whole; i += kGroup) {
    expand_signs(load_word(bits + i / 8), 1.0F, -1.0F, group);
    store_group(how, group, values + i);
  }
  end_stream();
  if (whole == count) return;
  expand_signs(load_tail(bits + whole / 8, count - whole), 1.0F, -1.0F, group);
  std::memcpy(values + whole, group, (count - whole) * sizeof(float));
}

}  // namespace octavo::cpu::OCTAVO_ISA
