// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stddef.h>  // NOLINT(modernize-deprecated-headers): of C

#include "octavo/export.h"

/// Managed memory by the names of seed 002, for C and ctypes: thin aliases of kernels/managed.h on the first device of
/// SYCL or, where there is none, in ordinary memory. From any thread. They throw nothing: a call that fails leaves a
/// sentence in octavo_last_error().
#ifdef __cplusplus
extern "C" {
#endif

/// `bytes` bytes of whole pages for the host and the device, uninitialized, which the caller frees; null where there is
/// none.
OCTAVO_API void* cget_managed_ptr(size_t bytes);
/// What cget_managed_ptr gave; nothing happens for null. No queue of anybody else may use it any more.
OCTAVO_API void cfree_managed_ptr(void* memory);

/// Begins to move `bytes` bytes of an allocation to the device of that number or, below 0, to the host.
OCTAVO_API void cprefetch(void* memory, size_t bytes, int device);

/// Sets `n` elements of A, and has done so when it returns; B is not used.
OCTAVO_API void cfill_fp32(float* A, float* B, float value, long n);
OCTAVO_API void cfill_uint8(unsigned char* A, unsigned char* B, unsigned char value, long n);

/// Why the thread's latest call failed; empty where it did not. Valid until the thread's next call.
OCTAVO_API const char* octavo_last_error(void);  // NOLINT(modernize-redundant-void-arg): of C

#ifdef __cplusplus
}  // extern "C"
#endif
