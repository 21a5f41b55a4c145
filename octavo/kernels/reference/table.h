// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "octavo/kernels/table.h"

/// The reference back end: each rule applied one element at a time. It defines what the others must return.
namespace octavo::reference {

void pack_sign_bits(Stream, const void* values, unsigned value_bytes, std::uint64_t count, std::uint8_t* bits);
void unpack_sign_bits(Stream, const std::uint8_t* bits, std::uint64_t count, float* values);

extern const CodecKernels fp32, bf16, scaled_sign, ballot, majority_vote, int4;

void chunk_powers(Stream, const float* values, std::uint64_t count, std::uint64_t stride, float* powers);

void adamw(Stream, const rules::AdamWStep& step, std::uint64_t count, const float* gradient, float* parameter,
           float* mean, float* square);
void frozen_adamw(Stream, float decay, float step_size, std::uint64_t count, const float* update, float* parameter);

extern const KernelTable table;

}  // namespace octavo::reference
