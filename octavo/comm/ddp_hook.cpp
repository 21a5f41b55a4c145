// SPDX-License-Identifier: Apache-2.0
#include "octavo/comm/ddp_hook.h"

#include <torch/csrc/distributed/c10d/comm.hpp>
#include <torch/csrc/distributed/c10d/reducer.hpp>

#include <algorithm>
#include <atomic>
#include <deque>
#include <exception>
#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "octavo/comm/serial_queue.h"
#include "octavo/device/host_alias.h"
#include "octavo/device/huge_pages.h"
#include "octavo/device/side_streams.h"
#include "octavo/kernels/error.h"

namespace octavo {

namespace {

using FuturePtr = c10::intrusive_ptr<c10::ivalue::Future>;

/// Tells which buckets are the first and the last one of their backward pass, from the parameters that have come. The
/// numbers of buckets do not tell: in the first pass of a static graph, each of them has the number 0.
class BackwardPass {
 public:
  /// `parameters`: how many come in a whole pass.
  explicit BackwardPass(std::size_t parameters) : parameters_(parameters) {}
  /// Takes a bucket's parameters. Returns whether the bucket is the first one of its pass. It is, too, where one of its
  /// parameters has come already: the pass before was broken off.
  bool begins_with(const std::vector<at::Tensor>& bucket) {
    const bool came_already = std::ranges::any_of(
        bucket, [&](const at::Tensor& parameter) { return came_.contains(parameter.unsafeGetTensorImpl()); });
    if (came_already || is_complete()) came_.clear();
    const bool begins = came_.empty();
    for (const at::Tensor& parameter : bucket) came_.insert(parameter.unsafeGetTensorImpl());
    return begins;
  }
  bool is_complete() const { return came_.size() == parameters_; }

 private:
  std::size_t parameters_;
  std::unordered_set<const c10::TensorImpl*> came_;
};

class DdpHook : public c10d::CppCommHookInterface<std::shared_ptr<Compressor>> {
 public:
  using Count = std::atomic<std::uint64_t>;

  /// `in_a_pass`: how many parameters come in a backward pass. `delivered`: counts the backward passes whose averages
  /// have been delivered.
  DdpHook(std::shared_ptr<Compressor> compressor, const std::vector<at::Tensor>& parameters, std::size_t in_a_pass,
          std::shared_ptr<Count> delivered, TranslateError translate, std::shared_ptr<SerialQueue> queue)
      : CppCommHookInterface(std::move(compressor)),
        delivered_(std::move(delivered)),
        translate_(std::move(translate)),
        pass_(in_a_pass),
        queue_(std::move(queue)) {
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      known_[parameters[i].unsafeGetTensorImpl()] = {i, parameters[i].strides().vec()};
    }
  }

  ~DdpHook() override { is_closing_ = true; }

  FuturePtr runHook(c10d::GradBucket& bucket) override {
    if (!bucket.getBuffer().is_sparse()) prepare(bucket.getBuffer());
    auto future = c10::make_intrusive<c10::ivalue::Future>(c10::TensorType::get());
    std::vector<Slot> slots;
    std::exception_ptr refused;
    try {
      slots = slots_of(bucket);
    } catch (...) {
      refused = std::current_exception();  // thrown in its turn: the buckets before this one are still under way
    }
    const bool is_first = pass_.begins_with(bucket.getParameters()), is_last = pass_.is_complete();
    // by now, what fills the bucket has been enqueued on backward's stream
    queue_->push([this, future, filled = streams_.hand_over(bucket.getBuffer().device()), buffer = bucket.getBuffer(),
                  slots = std::move(slots), refused, is_first, is_last, ready = Compressor::Clock::now()] {
      or_give_up(future, [&] {
        if (refused) std::rethrow_exception(refused);
        const auto on_own_stream = filled.take();
        take(future, buffer, slots, ready, is_first, is_last);
      });
    });
    return future;
  }

 private:
  struct InFlight {
    FuturePtr future;
    at::Tensor buffer;
    std::unique_ptr<Compressor::Job> job;
  };

  /// Makes a step of the pipeline: with each bucket that begins, those under way advance by one step. While a bucket's
  /// codes are sent up, the sums of the one before are sent down, and the one before that is decoded. What is done when
  /// follows only from the sequence of buckets, never from which message came first, so that all ranks make the same
  /// calls in the same order.
  void take(const FuturePtr& future, const at::Tensor& buffer, const std::vector<Slot>& slots,
            Compressor::Clock::time_point ready, bool is_first, bool is_last) {
    if (is_first) state_->begin_step();
    in_flight_.push_back({future, buffer, state_->begin(where_kernels_run(buffer), slots, std::nullopt, ready)});
    for (std::size_t i = in_flight_.size() - 1; i-- > 0;) {
      if (Compressor::is_to_advance(*in_flight_[i].job)) state_->advance(*in_flight_[i].job);
    }
    const int depth = std::max(kBucketsUnderWay, Compressor::transfers(*in_flight_.front().job));
    if (static_cast<int>(in_flight_.size()) > depth) finish_oldest();
    if (is_last) drain();
  }

  /// `delivers`: the bucket is the last one of its backward pass.
  void finish_oldest(bool delivers = false) {
    state_->finish(std::move(in_flight_.front().job));
    if (delivers) ++*delivered_;  // before backward, which waits for this bucket, can return
    in_flight_.front().future->markCompleted(in_flight_.front().buffer);
    in_flight_.pop_front();
  }

  void drain() {
    for (const InFlight& bucket : in_flight_) {
      while (Compressor::is_to_advance(*bucket.job)) state_->advance(*bucket.job);
    }
    while (in_flight_.size() > 1) finish_oldest();
    finish_oldest(/*delivers=*/true);
  }

  template <class Body>
  void or_give_up(const FuturePtr& future, Body body) {
    try {
      if (failure_) std::rethrow_exception(failure_);
      if (is_closing_) fail(ErrorCode::communication, "comm.ddp_hook", "the model was freed during its backward pass");
      body();
    } catch (...) {
      give_up(future, std::current_exception());
    }
  }

  /// After a failure the ranks no longer agree on which collective is next: nothing may be sent any more. Residuals are
  /// rolled back before anybody is told, because whom it reaches may save the state.
  void give_up(const FuturePtr& future, const std::exception_ptr& error) noexcept {
    failure_ = error;
    quietly([&] { state_->abandon_step(); });
    quietly([&] {
      if (translate_) failure_ = translate_(error);
    });
    tell_failure(future);
    for (const InFlight& bucket : in_flight_) tell_failure(bucket.future);
    in_flight_.clear();
  }

  void tell_failure(const FuturePtr& future) noexcept {
    quietly([&] {
      if (!future->completed()) future->setError(failure_);
    });
  }

  /// Calls `body`, and drops what it throws: the first failure is the one to be told.
  template <class Body>
  static void quietly(const Body& body) noexcept {
    try {
      body();
    } catch (...) {  // NOLINT(bugprone-empty-catch)
    }
  }

  /// Moves a bucket's memory to huge pages when it is seen first: it belongs to DDP and stays the same from step to
  /// step.
  void prepare(const at::Tensor& buffer) {
    if (buffers_.insert(buffer.const_data_ptr()).second) move_to_huge_pages(where_kernels_run(buffer));
  }

  std::vector<Slot> slots_of(const c10d::GradBucket& bucket) const {
    std::vector<Slot> slots;
    if (bucket.getBuffer().is_sparse()) return slots;
    const auto start = bucket.getBuffer().storage_offset();
    const auto parameters = bucket.getParameters();
    const auto gradients = bucket.getGradients();
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      const auto found = known_.find(parameters[i].unsafeGetTensorImpl());
      if (found == known_.end()) {
        fail(ErrorCode::communication, "comm.ddp_hook", "bucket ", bucket.getIndex(),
             " holds a parameter that the model did not have at octavo.compress, or that was frozen then: wrap the ",
             "changed model in a new DistributedDataParallel and compress that");
      }
      const auto& [index, strides] = found->second;
      if (parameters[i].strides() != at::IntArrayRef(strides)) {
        fail(ErrorCode::communication, "comm.ddp_hook", "a parameter of the sizes ", parameters[i].sizes(),
             " now has the strides ", parameters[i].strides(), ", and had ", at::IntArrayRef(strides),
             " at octavo.compress: DistributedDataParallel would mix up the elements of its gradient. Give the model ",
             "its memory format before you wrap it");
      }
      // From torch 2.13 on, a bucket of complex gradients is one of real numbers, whose places are counted in complex
      // ones.
      const std::int64_t reals = parameters[i].is_complex() && !bucket.getBuffer().is_complex() ? 2 : 1;
      slots.push_back({index, static_cast<std::uint64_t>(reals * (gradients[i].storage_offset() - start))});
    }
    return slots;
  }

  struct Known {
    std::size_t index;
    std::vector<std::int64_t> strides;
  };
  std::unordered_map<const c10::TensorImpl*, Known> known_;  // as they were at octavo.compress
  std::unordered_set<const void*> buffers_;                  // seen so far
  std::shared_ptr<Count> delivered_;
  const TranslateError translate_;
  std::atomic<bool> is_closing_ = false;  // what is left in the queue fails then
  SideStreams streams_;
  BackwardPass pass_;
  // only the queue's thread uses these
  std::deque<InFlight> in_flight_;
  std::exception_ptr failure_;

  std::shared_ptr<SerialQueue> queue_;  // last, because its jobs use all of the above
};

/// Returns the number of the reducer's parameters. Throws where one of the compressor's is not among them.
std::size_t count_in_reducer(const c10d::Reducer& reducer, const std::vector<at::Tensor>& compressed) {
  std::unordered_set<const c10::TensorImpl*> all;
  for (const c10d::GradBucket& bucket : reducer.get_grad_buckets(/*return_zero_tensors=*/false)) {
    for (const at::Tensor& parameter : bucket.getParameters()) all.insert(parameter.unsafeGetTensorImpl());
  }
  for (const at::Tensor& parameter : compressed) {
    if (all.contains(parameter.unsafeGetTensorImpl())) continue;
    fail(
        ErrorCode::invalid_argument, "comm.register_ddp_hook", "a parameter of the sizes ", parameter.sizes(),
        " was frozen or not there when the model was wrapped, so that DistributedDataParallel averages no gradient of ",
        "it: wrap the changed model in a new DistributedDataParallel, or freeze it");
  }
  return all.size();
}

}  // namespace

std::function<std::uint64_t()> register_ddp_hook(c10d::Reducer& reducer, std::shared_ptr<Compressor> compressor,
                                                 const std::vector<at::Tensor>& parameters, TranslateError translate,
                                                 std::shared_ptr<SerialQueue> queue) {
  const bool are_tensors =
      std::all_of(parameters.begin(), parameters.end(), [](const at::Tensor& one) { return one.defined(); });
  if (compressor == nullptr || !are_tensors) {
    fail(ErrorCode::invalid_argument, "comm.register_ddp_hook", "expected a compressor and the tensors of its ",
         "parameters, got ", compressor ? "an undefined tensor" : "no compressor");
  }
  const std::size_t in_a_pass = count_in_reducer(reducer, parameters);
  auto delivered = std::make_shared<DdpHook::Count>(0);
  if (queue == nullptr) queue = std::make_shared<SerialQueue>();
  reducer.register_comm_hook(std::make_unique<DdpHook>(std::move(compressor), parameters, in_a_pass, delivered,
                                                       std::move(translate), std::move(queue)));
  return [delivered] { return delivered->load(); };
}

}  // namespace octavo
