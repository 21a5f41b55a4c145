// SPDX-License-Identifier: Apache-2.0
#include "octavo/comm/shared/shared_word.h"

#include <algorithm>
#include <climits>
#include <ctime>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace octavo {

namespace {

/// The number of times that a core looks at the word in a loop before it sleeps: others are often about to answer, and
/// to sleep takes two system calls.
constexpr int kLooks = 1000;

void pause_core() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

/// Sleeps until the word is not `value` any more, or for `most` at the longest.
void sleep_while(const SharedWord& word, std::uint32_t value, std::chrono::nanoseconds most) {
  const timespec time{most.count() / 1'000'000'000, most.count() % 1'000'000'000};
  syscall(SYS_futex, &word, FUTEX_WAIT, value, &time, nullptr, 0);
}

}  // namespace

Awaited await_word(const SharedWord& word, std::chrono::steady_clock::time_point deadline,
                   const std::function<bool(std::uint32_t)>& reached, const std::function<bool()>& has_ended) {
  constexpr std::chrono::nanoseconds kAsleep = std::chrono::milliseconds(50);  // between two calls of has_ended()
  for (int look = 0;; ++look) {
    const std::uint32_t value = word.load(std::memory_order_acquire);
    if (reached(value)) return Awaited::reached;
    if (look < kLooks) {
      pause_core();
      continue;
    }
    // A process that has ended may have changed the word before.
    if (has_ended()) return reached(word.load(std::memory_order_acquire)) ? Awaited::reached : Awaited::ended;
    const auto left = deadline - std::chrono::steady_clock::now();
    if (left.count() <= 0) return Awaited::late;
    sleep_while(word, value, std::min<std::chrono::nanoseconds>(left, kAsleep));
  }
}

void wake_all(SharedWord& word) { syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0); }

}  // namespace octavo
