// SPDX-License-Identifier: Apache-2.0
#include "tests/fake_device/queue.h"

#include <thread>
#include <utility>

namespace octavo::fake {

void Mark::reach() {
  const std::lock_guard lock(mutex_);
  time_ = Clock::now();
  reached_.notify_all();
}

bool Mark::is_reached() const {
  const std::lock_guard lock(mutex_);
  return time_.has_value();
}

void Mark::wait() const {
  std::unique_lock lock(mutex_);
  reached_.wait(lock, [&] { return time_.has_value(); });
}

Clock::time_point Mark::time() const {
  const std::lock_guard lock(mutex_);
  return time_.value();
}

CommandQueue::CommandQueue(std::chrono::microseconds delay) : delay_(delay) {
  std::thread([this] { run(); }).detach();
}

void CommandQueue::push(Command command) {
  const std::lock_guard lock(mutex_);
  commands_.push_back(std::move(command));
  changed_.notify_all();
}

bool CommandQueue::is_idle() const {
  const std::lock_guard lock(mutex_);
  return commands_.empty();
}

void CommandQueue::wait() const {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return commands_.empty(); });
}

void CommandQueue::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return !commands_.empty(); });
    const Command& command = commands_.front();  // stays valid: others only add behind it
    lock.unlock();
    if (command.waits_for) command.waits_for->wait();
    if (command.run) {
      std::this_thread::sleep_for(delay_);
      command.run();
    }
    lock.lock();
    const std::shared_ptr<Mark> reached = command.reaches;
    commands_.pop_front();  // releases its memory before anybody learns that it has run
    if (reached) reached->reach();
    changed_.notify_all();
  }
}

}  // namespace octavo::fake
