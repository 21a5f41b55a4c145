// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <sys/types.h>

#include "octavo/export.h"

namespace octavo {

/// One thread that runs jobs in the order in which they were pushed. push() is thread-safe; a job must not throw. The
/// destructor runs what is left and joins. In a child that was forked from the process of the thread there is no
/// thread: the destructor leaves everything as it is there.
class OCTAVO_API SerialQueue {
 public:
  SerialQueue();
  ~SerialQueue();
  SerialQueue(const SerialQueue&) = delete;
  SerialQueue& operator=(const SerialQueue&) = delete;

  void push(std::function<void()> job);

 private:
  struct Shared;

  pid_t process_;
  std::unique_ptr<Shared> shared_;
};

}  // namespace octavo
