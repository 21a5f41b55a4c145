// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace octavo {

/// Copies by all threads. What is large goes around the caches, where nobody finds it soon: what another rank reads
/// meanwhile then stays there.
void copy_out(void* to, const void* from, std::uint64_t bytes);
/// The same, of what is read at once.
void copy_in(void* to, const void* from, std::uint64_t bytes);

}  // namespace octavo
