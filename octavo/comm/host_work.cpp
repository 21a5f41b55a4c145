// SPDX-License-Identifier: Apache-2.0
#include "octavo/comm/host_work.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <utility>

#include "octavo/comm/time_left.h"

namespace octavo {

using std::chrono::milliseconds;

HostWork::HostWork(std::vector<WorkPtr> on_cpu, Tensors results)
    : on_cpu_(std::move(on_cpu)), results_(std::move(results)) {}

bool HostWork::isCompleted() {
  return std::all_of(on_cpu_.begin(), on_cpu_.end(), [](const WorkPtr& work) { return work->isCompleted(); });
}

bool HostWork::isSuccess() const {
  return std::all_of(on_cpu_.begin(), on_cpu_.end(), [](const WorkPtr& work) { return work->isSuccess(); });
}

std::exception_ptr HostWork::exception() const {
  for (const WorkPtr& work : on_cpu_) {
    if (std::exception_ptr failure = work->exception()) return failure;
  }
  return nullptr;
}

int HostWork::sourceRank() const { return on_cpu_.size() == 1 ? on_cpu_.front()->sourceRank() : -1; }

void HostWork::synchronize() {
  for (const WorkPtr& work : on_cpu_) work->synchronize();
}

bool HostWork::wait(milliseconds timeout) {
  const TimeLeft left(timeout);
  bool is_done = true;
  for (const WorkPtr& work : on_cpu_) is_done &= work->wait(timeout == kNoTimeout ? kNoTimeout : left());
  return is_done;
}

void HostWork::abort() {
  for (const WorkPtr& work : on_cpu_) work->abort();
}

c10::intrusive_ptr<c10::ivalue::Future> HostWork::getFuture() {
  auto future = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()));
  if (on_cpu_.empty()) future->markCompleted(c10::IValue(results_));
  const auto left = std::make_shared<std::atomic<std::size_t>>(on_cpu_.size());
  for (const WorkPtr& work : on_cpu_) {
    work->getFuture()->addCallback([future, left, results = results_](c10::ivalue::Future& done) {
      if (done.hasError()) future->setErrorIfNeeded(done.exception_ptr());
      if (--*left == 0 && !future->completed()) future->markCompleted(c10::IValue(results));
    });
  }
  return future;
}

}  // namespace octavo
