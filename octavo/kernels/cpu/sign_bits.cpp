// SPDX-License-Identifier: Apache-2.0
#include "octavo/rules/sign_bits.h"

#include "octavo/kernels/cpu/table.h"
#include "octavo/kernels/cpu/values.h"

namespace octavo::cpu::OCTAVO_ISA {

namespace {

template <class Word>
void pack(const Word* values, std::uint64_t count, std::uint8_t* bits) {
  for_each_group(count, [&](std::uint64_t i, auto group) {
    prefetch_ahead(values + i);
    pack_signs(values + i, group, bits + i / 8);
  });
}

}  // namespace

void pack_sign_bits(Queue, const void* values, unsigned value_bytes, std::uint64_t count, std::uint8_t* bits) {
  switch (value_bytes) {
    case 1: return pack(static_cast<const std::uint8_t*>(values), count, bits);
    case 2: return pack(static_cast<const std::uint16_t*>(values), count, bits);
    case 4: return pack(static_cast<const std::uint32_t*>(values), count, bits);
    default: return pack(static_cast<const std::uint64_t*>(values), count, bits);
  }
}

void unpack_sign_bits(Queue, const std::uint8_t* bits, std::uint64_t count, float* values) {
  const Store how = choose_store(count);
  for_each_group(count, [&](std::uint64_t i, auto group) {
    float signs[kGroup];
    expand_signs(load_signs(bits + i / 8, group), 1.0F, -1.0F, signs);
    store_part(how, signs, group, values + i);
  });
  end_stream();
}

}  // namespace octavo::cpu::OCTAVO_ISA
