// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The qualifier of every rule. Rules are compiled from one text for the host (several instruction sets), CUDA and
/// SYCL. They are always inlined: an out-of-line copy compiled for AVX-512 could otherwise be the one that the linker
/// keeps for the portable build.
#if defined(__CUDACC__)
#define OCTAVO_RULE __host__ __device__ __forceinline__
#else
#define OCTAVO_RULE [[gnu::always_inline]] inline
#endif
