// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "octavo/kernels/table.h"

/// The cpu back end. Every file of this folder except isa.* is compiled once for each instruction set, into the
/// namespace octavo::cpu::OCTAVO_ISA; isa.cpp chooses a table at run time. The files hold plain loops over groups of 64
/// values, which the compiler vectorises for the instruction set at hand; the few things that loops express badly are
/// in simd.h.
#ifdef OCTAVO_ISA
namespace octavo::cpu::OCTAVO_ISA {

#include "octavo/kernels/declarations.inc"

extern const KernelTable table;

}  // namespace octavo::cpu::OCTAVO_ISA
#endif
