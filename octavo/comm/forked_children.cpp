// SPDX-License-Identifier: Apache-2.0
#include "octavo/comm/forked_children.h"

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <mutex>
#include <pthread.h>
#include <unordered_set>

#include "octavo/kernels/fork.h"

namespace octavo {

namespace {

struct Backends {
  std::mutex mutex;                              // held over forks
  std::unordered_multiset<c10d::Backend*> kept;  // not weak pointers, which would put off destructors here, too
};

Backends& backends() {
  static auto* const known = new Backends;
  return *known;
}

/// In the child, which has no other thread: owns every back end that is still there, for good.
void keep_all() {
  using Pointer = c10::intrusive_ptr<c10d::Backend>;
  for (c10d::Backend* const backend : backends().kept) static_cast<void>(Pointer::reclaim_copy(backend).release());
}

bool watch_forks() {
  hold_over_forks<[]() -> std::mutex& { return backends().mutex; }>();
  return pthread_atfork(nullptr, nullptr, keep_all) == 0;
}

}  // namespace

void keep_in_children(c10d::Backend* backend) {
  [[maybe_unused]] static const bool is_watching = watch_forks();
  const std::lock_guard lock(backends().mutex);
  backends().kept.insert(backend);
}

void release_in_children(c10d::Backend* backend) {
  const std::lock_guard lock(backends().mutex);
  backends().kept.erase(backends().kept.find(backend));
}

}  // namespace octavo
