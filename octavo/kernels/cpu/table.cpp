// SPDX-License-Identifier: Apache-2.0
#include "octavo/kernels/cpu/table.h"

#define OCTAVO_QUOTE(name) #name
#define OCTAVO_NAME(name) OCTAVO_QUOTE(name)

namespace octavo::cpu::OCTAVO_ISA {

const KernelTable table = {
    .name = OCTAVO_NAME(OCTAVO_ISA),
    .pack_sign_bits = pack_sign_bits,
    .unpack_sign_bits = unpack_sign_bits,
    .fp32 = fp32,
    .bf16 = bf16,
    .scaled_sign = scaled_sign,
    .ballot = ballot,
    .majority_vote = majority_vote,
    .int4 = int4,
    .chunk_powers = chunk_powers,
    .adamw = adamw,
    .frozen_adamw = frozen_adamw,
};

}  // namespace octavo::cpu::OCTAVO_ISA
