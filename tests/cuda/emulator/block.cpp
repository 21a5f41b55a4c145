// SPDX-License-Identifier: Apache-2.0
#include "tests/cuda/emulator/block.h"

#include <algorithm>
#include <array>
#include <csetjmp>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <ucontext.h>
#include <vector>

namespace octavo::cuda_emulator {

namespace {

constexpr unsigned kLanes = 32;
constexpr std::size_t kStackBytes = 64 << 10;

class Warp;
thread_local Warp* running = nullptr;

/// A lane's stack. It is entered by makecontext once, and then by _longjmp, which makes no system call.
struct Fiber {
  enum class State { free, waits, runs } state = State::free;
  Thread thread = {};
  Primitive primitive = {};
  ucontext_t first_entry;
  std::jmp_buf resume;
  bool is_entered = false;
  std::unique_ptr<std::byte[]> stack = std::make_unique_for_overwrite<std::byte[]>(kStackBytes);
};

/// The fibers of the thread that runs launches; each runs one lane after another.
class Warp {
 public:
  /// Runs up to 32 threads, from number `first` of the block on. Returns what is wrong; the fibers then stay where they
  /// are, and the warp is of no further use.
  std::string run(const Launch& launch, Dimensions block, unsigned first, unsigned count) {
    running = this;
    launch_ = &launch;
    count_ = count;
    for (unsigned lane = 0; lane < count; ++lane) {
      fibers_[lane].thread = {{first + lane, 0, 0}, block, launch.block_size, launch.grid_size};
      fibers_[lane].state = Fiber::State::runs;
    }
    for (;;) {
      unsigned waiting = 0;
      for (unsigned lane = 0; lane < count; ++lane) {
        if (fibers_[lane].state == Fiber::State::free) continue;
        enter(lane);
        waiting += fibers_[lane].state == Fiber::State::waits ? 1 : 0;
      }
      if (waiting == 0) return "";
      if (std::string fault = fault_of_meeting(waiting); !fault.empty()) return fault;
      turn_ ^= 1U;  // what was handed in can be read now; the next values go elsewhere
    }
  }

  const Thread& thread() const { return fibers_[lane_].thread; }

  const std::uint64_t* meet(Primitive primitive, unsigned mask, std::uint64_t own) {
    Fiber& fiber = fibers_[lane_];
    const unsigned turn = turn_;
    values_[turn][lane_] = own;
    fiber.state = Fiber::State::waits;
    fiber.primitive = primitive;
    masks_ &= mask;
    if (_setjmp(fiber.resume) == 0) _longjmp(scheduler_, 1);
    return values_[turn].data();
  }

 private:
  void enter(unsigned lane) {
    lane_ = lane;
    Fiber& fiber = fibers_[lane];
    if (_setjmp(scheduler_) != 0) return;
    if (fiber.is_entered) _longjmp(fiber.resume, 1);
    fiber.is_entered = true;
    getcontext(&fiber.first_entry);
    fiber.first_entry.uc_stack.ss_sp = fiber.stack.get();
    fiber.first_entry.uc_stack.ss_size = kStackBytes;
    makecontext(&fiber.first_entry, [] { running->work(); }, 0);
    setcontext(&fiber.first_entry);
  }

  /// What a fiber does: one lane after another.
  [[noreturn]] void work() {
    for (;;) {
      launch_->kernel(launch_->parameters);
      Fiber& fiber = fibers_[lane_];
      fiber.state = Fiber::State::free;
      if (_setjmp(fiber.resume) == 0) _longjmp(scheduler_, 1);
    }
  }

  std::string fault_of_meeting(unsigned waiting) {
    const unsigned masks = masks_;
    masks_ = 0xFFFFFFFFU;
    if (count_ < kLanes || waiting < count_) {
      return std::to_string(waiting) + " of " + std::to_string(kLanes) + " lanes wait in a primitive of all lanes";
    }
    if (masks != 0xFFFFFFFFU) return "a primitive's mask does not name all lanes";
    for (unsigned lane = 1; lane < count_; ++lane) {
      if (fibers_[lane].primitive != fibers_[0].primitive) return "lanes of one warp wait in different primitives";
    }
    return "";
  }

  std::array<Fiber, kLanes> fibers_;
  std::array<std::array<std::uint64_t, kLanes>, 2> values_ = {};
  std::jmp_buf scheduler_;
  const Launch* launch_ = nullptr;
  unsigned count_ = 0, lane_ = 0, turn_ = 0, masks_ = 0xFFFFFFFFU;
};

}  // namespace

std::string run(const Launch& launch) {
  thread_local Warp* warp = nullptr;
  if (warp == nullptr) warp = new Warp;
  for (unsigned block = 0; block < launch.grid_size.x; ++block) {
    for (unsigned first = 0; first < launch.block_size.x; first += kLanes) {
      const unsigned count = std::min(kLanes, launch.block_size.x - first);
      std::string fault = warp->run(launch, {block, 0, 0}, first, count);
      if (fault.empty()) continue;
      warp = nullptr;
      return fault;
    }
  }
  return "";
}

const Lanes& lanes() {
  static const Lanes own = {
      .thread = []() -> const Thread& { return running->thread(); },
      .meet = [](Primitive primitive, unsigned mask, std::uint64_t own) { return running->meet(primitive, mask, own); },
  };
  return own;
}

}  // namespace octavo::cuda_emulator
