// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

#include "octavo/export.h"

namespace octavo {

/// One thread that runs jobs in the order in which they were pushed. push() is thread-safe; a job must not throw. The
/// destructor runs what is left and joins.
class OCTAVO_API SerialQueue {
 public:
  SerialQueue();
  ~SerialQueue();
  SerialQueue(const SerialQueue&) = delete;
  SerialQueue& operator=(const SerialQueue&) = delete;

  void push(std::function<void()> job);

 private:
  void run();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> jobs_;
  bool closed_ = false;
  std::thread thread_;  // last: it starts when all other members exist
};

}  // namespace octavo
