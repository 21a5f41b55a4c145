// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pthread.h>

namespace octavo {

/// Makes whoever forks this process from now on hold a mutex meanwhile: the one that `mutex_of` returns, which exists
/// as long as the process. The child has no other thread that could unlock it, and the child frees tensors, too.
/// Whoever holds it must wait for no other mutex of this kind.
template <auto mutex_of>
void hold_over_forks() {
  const auto lock = [] { mutex_of().lock(); };
  const auto unlock = [] { mutex_of().unlock(); };
  pthread_atfork(lock, unlock, unlock);
}

}  // namespace octavo
