// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>

/// Words by which processes tell one another something: in memory that they share, and waited for without a loop.
namespace octavo {

using SharedWord = std::atomic<std::uint32_t>;
static_assert(SharedWord::is_always_lock_free && sizeof(SharedWord) == 4);

enum class Awaited { reached, late, gone };

/// Blocks until `reached(word)`, or the deadline, or `has_gone()`: that who would change the word is no more, which is
/// asked now and then. What was written before the word was changed is then to be seen.
Awaited await_word(const SharedWord& word, std::chrono::steady_clock::time_point deadline,
                   const std::function<bool(std::uint32_t)>& reached, const std::function<bool()>& has_gone);

/// After a change of the word: whoever awaits it looks again.
void wake_all(SharedWord& word);

}  // namespace octavo
