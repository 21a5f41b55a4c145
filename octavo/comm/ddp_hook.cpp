// SPDX-License-Identifier: Apache-2.0
#include "octavo/comm/ddp_hook.h"

#include <torch/csrc/distributed/c10d/comm.hpp>
#include <torch/csrc/distributed/c10d/reducer.hpp>

#include <exception>
#include <unordered_map>
#include <utility>

#include "octavo/comm/serial_queue.h"
#include "octavo/kernels/error.h"

namespace octavo {

namespace {

using FuturePtr = c10::intrusive_ptr<c10::ivalue::Future>;

class DdpHook : public c10d::CppCommHookInterface<std::shared_ptr<Compressor>> {
 public:
  DdpHook(std::shared_ptr<Compressor> compressor, const std::vector<at::Tensor>& parameters)
      : CppCommHookInterface(std::move(compressor)) {
    for (std::size_t i = 0; i < parameters.size(); ++i) index_of_[parameters[i].unsafeGetTensorImpl()] = i;
  }

  FuturePtr runHook(c10d::GradBucket& bucket) override {
    auto future = c10::make_intrusive<c10::ivalue::Future>(c10::TensorType::get());
    queue_.push([this, future, buffer = bucket.getBuffer(), slots = slots_of(bucket),
                 is_first = bucket.getIndex() == 0] { run(future, buffer, slots, is_first); });
    return future;
  }

 private:
  void run(const FuturePtr& future, at::Tensor buffer, const std::vector<Slot>& slots, bool is_first) {
    try {
      if (failure_) std::rethrow_exception(failure_);
      if (is_first) state_->begin_step();
      state_->reduce(buffer, slots);
      future->markCompleted(buffer);
    } catch (...) {
      // the ranks no longer agree on which collective is next: nothing may be sent any more
      failure_ = std::current_exception();
      future->setError(failure_);
    }
  }

  std::vector<Slot> slots_of(const c10d::GradBucket& bucket) const {
    std::vector<Slot> slots;
    if (bucket.getBuffer().is_sparse()) return slots;
    const auto start = bucket.getBuffer().storage_offset();
    const auto parameters = bucket.getParameters();
    const auto gradients = bucket.getGradients();
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      const auto found = index_of_.find(parameters[i].unsafeGetTensorImpl());
      if (found == index_of_.end()) {
        fail(ErrorCode::internal, "comm.ddp_hook", "bucket ", bucket.getIndex(), " has a parameter that the model had not");
      }
      slots.push_back({found->second, static_cast<std::uint64_t>(gradients[i].storage_offset() - start)});
    }
    return slots;
  }

  std::unordered_map<const c10::TensorImpl*, std::size_t> index_of_;
  std::exception_ptr failure_;  // of the queue's thread alone
  SerialQueue queue_;           // last: its jobs use all of the above
};

}  // namespace

void register_ddp_hook(c10d::Reducer& reducer, std::shared_ptr<Compressor> compressor,
                       const std::vector<at::Tensor>& parameters) {
  reducer.register_comm_hook(std::make_unique<DdpHook>(std::move(compressor), parameters));
}

}  // namespace octavo
