// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/Storage.h>

#include <cstddef>

/// The operators of the device. Each function registers those of one file. `register_cpu_operators` comes last, because
/// it does not replace what is registered already.
namespace octavo::sycl_device {

void register_memory_operators();  // memory.cpp: what makes tensors and views and changes their storage
void register_copy();              // copy.cpp: between devices, dtypes and strides
void register_nn_operators();      // nn_operators.cpp: attention, dropout, LSTM and GRU, autocast
/// fallback.cpp: every operator that the CPU has, strided and sparse, and a fallback for those that come later, all by
/// call_on_cpu.
void register_cpu_operators();

/// What `untyped_storage().resize_(bytes)` does.
void resize_storage(const c10::Storage&, std::size_t bytes);

}  // namespace octavo::sycl_device
