// SPDX-License-Identifier: Apache-2.0
#include "octavo/comm/serial_queue.h"

#include <pthread.h>
#include <utility>

namespace octavo {

SerialQueue::SerialQueue() : thread_([this] { run(); }) { pthread_setname_np(thread_.native_handle(), "octavo_comm"); }

SerialQueue::~SerialQueue() {
  {
    const std::lock_guard lock(mutex_);
    closed_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

void SerialQueue::push(std::function<void()> job) {
  {
    const std::lock_guard lock(mutex_);
    jobs_.push_back(std::move(job));
  }
  changed_.notify_one();
}

void SerialQueue::run() {
  for (;;) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return closed_ || !jobs_.empty(); });
    if (jobs_.empty()) return;
    const auto job = std::move(jobs_.front());
    jobs_.pop_front();
    lock.unlock();
    job();
  }
}

}  // namespace octavo
