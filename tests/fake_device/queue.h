// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

namespace octavo::fake {

class Allocation;

using Clock = std::chrono::steady_clock;

/// The moment at which a queue reached a mark. Thread-safe.
class Mark {
 public:
  void reach();
  bool is_reached() const;
  void wait() const;
  Clock::time_point time() const;  // only for a mark that was reached

 private:
  mutable std::mutex mutex_;
  mutable std::condition_variable reached_;
  std::optional<Clock::time_point> time_;
};

/// An entry of a queue: the queue waits for a mark, runs a function, and reaches a mark, each where there is one.
struct Command {
  std::shared_ptr<const Mark> waits_for = {};
  std::function<void()> run = {};
  std::vector<std::shared_ptr<const Allocation>> uses = {};  // memory that `run` uses
  std::shared_ptr<Mark> reaches = {};
};

/// A thread that runs commands in order, each of them `delay` after it could have run. A caller that does not wait for
/// a command therefore finds that it has not run. Thread-safe; never destroyed.
class CommandQueue {
 public:
  explicit CommandQueue(std::chrono::microseconds delay);
  void push(Command command);
  bool is_idle() const;
  void wait() const;

 private:
  void run();

  const std::chrono::microseconds delay_;
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  std::deque<Command> commands_;  // the first is being run
};

}  // namespace octavo::fake
