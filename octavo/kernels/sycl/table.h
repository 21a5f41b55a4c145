// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "octavo/kernels/table.h"

/// The SYCL back end. A kernel is two files of one basename: NAME.sycl is the device's source, compiled at run time by
/// program.cpp for the device at hand; NAME.cpp enqueues it.
namespace octavo::sycl_backend {

void pack_sign_bits(Stream, const void* values, unsigned value_bytes, std::uint64_t count, std::uint8_t* bits);
void unpack_sign_bits(Stream, const std::uint8_t* bits, std::uint64_t count, float* values);

extern const CodecKernels fp32, bf16, scaled_sign, ballot, majority_vote, int4;

void chunk_powers(Stream, const float* values, std::uint64_t count, std::uint64_t stride, float* powers);

void adamw(Stream, const rules::AdamWStep& step, std::uint64_t count, const float* gradient, float* parameter,
           float* mean, float* square);
void frozen_adamw(Stream, float decay, float step_size, std::uint64_t count, const float* update, float* parameter);

// user_kernel.cpp: DeviceRuntime::compile and launch
Kernel compile_user_kernel(Stream, const std::string& source, const std::string& function);
void launch_user_kernel(Stream, Kernel, std::uint64_t groups, std::uint64_t group_size, const KernelArgument* arguments,
                        std::uint64_t argument_count);

extern const DeviceRuntime runtime;
extern const KernelTable table;

}  // namespace octavo::sycl_backend
