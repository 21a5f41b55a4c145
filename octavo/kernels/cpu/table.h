// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "octavo/kernels/table.h"

/// The cpu back end. Every file of this folder except isa.* is compiled once for each instruction set, into the
/// namespace octavo::cpu::OCTAVO_ISA; isa.cpp chooses a table at run time. The files hold plain loops over groups of 64
/// values, which the compiler vectorises for the instruction set at hand; the few things that loops express badly are
/// in simd.h.
#ifdef OCTAVO_ISA
namespace octavo::cpu::OCTAVO_ISA {

void pack_sign_bits(Stream, const void* values, unsigned value_bytes, std::uint64_t count, std::uint8_t* bits);
void unpack_sign_bits(Stream, const std::uint8_t* bits, std::uint64_t count, float* values);

extern const CodecKernels fp32, bf16, scaled_sign, ballot, majority_vote, int4;

void chunk_powers(Stream, const float* values, std::uint64_t count, std::uint64_t stride, float* powers);

void adamw(Stream, const rules::AdamWStep& step, std::uint64_t count, const float* gradient, float* parameter,
           float* mean, float* square);
void frozen_adamw(Stream, float decay, float step_size, std::uint64_t count, const float* update, float* parameter);

extern const KernelTable table;

}  // namespace octavo::cpu::OCTAVO_ISA
#endif
