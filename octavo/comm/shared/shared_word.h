// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>

/// Words in shared memory by which processes tell one another something. Who waits for one first looks at it for a
/// while, then sleeps.
namespace octavo {

using SharedWord = std::atomic<std::uint32_t>;
static_assert(SharedWord::is_always_lock_free && sizeof(SharedWord) == 4);

enum class Awaited { reached, late, ended };

/// Blocks until `reached(word)`, the deadline, or `has_ended()`, which says that the process that would change the word
/// has ended and is asked from time to time. What was written before the word was changed can then be read.
Awaited await_word(const SharedWord& word, std::chrono::steady_clock::time_point deadline,
                   const std::function<bool(std::uint32_t)>& reached, const std::function<bool()>& has_ended);

/// Wakes all who wait for the word. It must be called after a change of the word.
void wake_all(SharedWord& word);

}  // namespace octavo
