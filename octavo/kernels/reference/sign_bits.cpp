// SPDX-License-Identifier: Apache-2.0
#include "octavo/rules/sign_bits.h"

#include <cstring>

#include "octavo/kernels/reference/table.h"

namespace octavo::reference {

namespace {

template <class Word>
void pack(const unsigned char* values, std::uint64_t count, std::uint8_t* bits) {
  for (std::uint64_t i = 0; i < count; ++i) {
    Word word;
    std::memcpy(&word, values + i * sizeof(Word), sizeof(Word));
    if (i % 8 == 0) bits[i / 8] = 0;
    bits[i / 8] |= rules::place_sign_bit(rules::sign_bit(word), i);
  }
}

}  // namespace

void pack_sign_bits(Queue, const void* values, unsigned value_bytes, std::uint64_t count, std::uint8_t* bits) {
  const auto* bytes = static_cast<const unsigned char*>(values);
  switch (value_bytes) {
    case 1: return pack<std::uint8_t>(bytes, count, bits);
    case 2: return pack<std::uint16_t>(bytes, count, bits);
    case 4: return pack<std::uint32_t>(bytes, count, bits);
    default: return pack<std::uint64_t>(bytes, count, bits);
  }
}

void unpack_sign_bits(Queue, const std::uint8_t* bits, std::uint64_t count, float* values) {
  for (std::uint64_t i = 0; i < count; ++i) values[i] = rules::is_positive(bits[i / 8], i) ? 1.0F : -1.0F;
}

}  // namespace octavo::reference
