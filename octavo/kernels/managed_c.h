// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stddef.h>  // NOLINT(modernize-deprecated-headers): of C

#include "octavo/export.h"

/// Managed memory under the names of seed 002, for C and ctypes: thin aliases of kernels/managed.h on the first device
/// of CUDA, of SYCL where there is none or, where neither is, in ordinary memory. The first call looks for these
/// devices, which loads their back ends and initializes their drivers. Any thread may call them. They throw nothing: a
/// call that fails leaves a sentence in octavo_last_error().
///
/// cprefetch and cfill_* take memory of cget_managed_ptr, from any place in an allocation on, and fail where it has
/// fewer bytes than they need from there on. As with bitsandbytes they also take other memory that the device can
/// access. That is not checked: memory that was freed or is out of the device's reach is undefined.
#ifdef __cplusplus
extern "C" {
#endif

/// Allocates `bytes` bytes in whole pages for the host and the device, uninitialized; the caller frees them. Returns
/// null where the call fails.
OCTAVO_API void* cget_managed_ptr(size_t bytes);
/// Frees what cget_managed_ptr returned; nothing happens for null. No other queue may use it any more.
OCTAVO_API void cfree_managed_ptr(void* memory);

/// Begins to move `bytes` bytes to device number `device`, which is 0, or, where that is below 0, to the host.
OCTAVO_API void cprefetch(void* memory, size_t bytes, int device);

/// Sets `n` elements of A, and returns when that is done; B is not used. A of cfill_fp32 is at a multiple of 4 bytes.
OCTAVO_API void cfill_fp32(float* A, float* B, float value, long n);
OCTAVO_API void cfill_uint8(unsigned char* A, unsigned char* B, unsigned char value, long n);

/// Returns why the calling thread's latest call failed; an empty string where it did not. Valid until the thread's next
/// call.
OCTAVO_API const char* octavo_last_error(void);  // NOLINT(modernize-redundant-void-arg): of C

#ifdef __cplusplus
}  // extern "C"
#endif
