// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace octavo {

/// Copies on all threads. Large copies go around the caches, because they are not read soon; what another rank reads
/// meanwhile then stays in the caches.
void copy_out(void* to, const void* from, std::uint64_t bytes);
/// Does the same for what is read at once: the copy goes through the caches.
void copy_in(void* to, const void* from, std::uint64_t bytes);
/// Does both, and reads `from` once: the memory of `in` and of `out` may not overlap it.
void copy_in_and_out(void* in, void* out, const void* from, std::uint64_t bytes);

}  // namespace octavo
