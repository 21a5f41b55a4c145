// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The operators that are written for the device; all others go through the fallback.
namespace octavo::sycl_device {

void register_storage_operators();  // what makes tensors and views and changes their storage
void register_copy();               // between devices, dtypes and strides
void register_convolution();
void register_attention();
void register_dropout();
void register_recurrent();  // LSTM and GRU
void register_autocast();

}  // namespace octavo::sycl_device
