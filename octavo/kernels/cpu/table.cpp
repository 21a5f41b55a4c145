// SPDX-License-Identifier: Apache-2.0
#include "octavo/kernels/cpu/table.h"

#define OCTAVO_QUOTE(name) #name
#define OCTAVO_NAME(name) OCTAVO_QUOTE(name)

namespace octavo::cpu::OCTAVO_ISA {

constinit const KernelTable table = {
    .name = OCTAVO_NAME(OCTAVO_ISA),
    .managed = &host_managed,
#include "octavo/kernels/entries.inc"
};

}  // namespace octavo::cpu::OCTAVO_ISA
