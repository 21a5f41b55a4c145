// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pthread.h>

namespace octavo {

/// From now on whoever forks this process holds the mutex meanwhile, which `mutex_of` returns and which lasts as long
/// as the process: the child has no other thread that could unlock it, and frees tensors, too. Whoever holds it must
/// wait for no other mutex of this kind.
template <auto mutex_of>
void hold_over_forks() {
  const auto lock = [] { mutex_of().lock(); };
  const auto unlock = [] { mutex_of().unlock(); };
  pthread_atfork(lock, unlock, unlock);
}

}  // namespace octavo
