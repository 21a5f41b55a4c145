// SPDX-License-Identifier: Apache-2.0
#include "octavo/comm/serial_queue.h"

#include <condition_variable>
#include <deque>
#include <mutex>
#include <pthread.h>
#include <thread>
#include <unistd.h>
#include <utility>

namespace octavo {

struct SerialQueue::Shared {
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::function<void()>> jobs;
  bool closed = false;
  std::thread thread{[this] { run(); }};  // last: it starts when all other members exist

  void run();
};

SerialQueue::SerialQueue() : process_(getpid()), shared_(std::make_unique<Shared>()) {
  pthread_setname_np(shared_->thread.native_handle(), "octavo_comm");
}

SerialQueue::~SerialQueue() {
  if (getpid() != process_) {  // a condition variable would wait for its waiters, and join() for the thread
    static_cast<void>(shared_.release());
    return;
  }
  {
    const std::lock_guard lock(shared_->mutex);
    shared_->closed = true;
  }
  shared_->changed.notify_one();
  shared_->thread.join();
}

void SerialQueue::push(std::function<void()> job) {
  {
    const std::lock_guard lock(shared_->mutex);
    shared_->jobs.push_back(std::move(job));
  }
  shared_->changed.notify_one();
}

void SerialQueue::Shared::run() {
  for (;;) {
    std::unique_lock lock(mutex);
    changed.wait(lock, [this] { return closed || !jobs.empty(); });
    if (jobs.empty()) return;
    const auto job = std::move(jobs.front());
    jobs.pop_front();
    lock.unlock();
    job();
  }
}

}  // namespace octavo
