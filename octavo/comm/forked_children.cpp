// SPDX-License-Identifier: Apache-2.0
#include "octavo/comm/forked_children.h"

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <mutex>
#include <pthread.h>
#include <vector>

namespace octavo {

namespace {

struct Backends {
  std::mutex mutex;  // held over forks
  std::vector<c10::weak_intrusive_ptr<c10d::Backend>> all;
};

Backends& backends() {
  static auto* const known = new Backends;
  return *known;
}

/// In the child: owns every back end that is still there, for good.
void keep_all() {
  for (const auto& backend : backends().all) static_cast<void>(backend.lock().release());
}

bool watch_forks() {
  return pthread_atfork([] { backends().mutex.lock(); }, [] { backends().mutex.unlock(); },
                        [] {
                          keep_all();
                          backends().mutex.unlock();
                        }) == 0;
}

}  // namespace

void keep_in_forked_children(const c10::intrusive_ptr<c10d::Backend>& backend) {
  [[maybe_unused]] static const bool is_watching = watch_forks();
  const std::lock_guard lock(backends().mutex);
  const c10::weak_intrusive_ptr<c10d::Backend> watched(backend);
  auto& all = backends().all;
  std::erase_if(all, [&](const auto& known) { return known.expired() || known == watched; });
  all.push_back(watched);
}

}  // namespace octavo
