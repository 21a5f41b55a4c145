// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/ATen.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <cstring>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

/// Threads as ranks, joined by a back end that copies through shared memory. So schedules are tested without a network,
/// and a thread sanitizer sees a race in them. The Python tests use real networks.
namespace octavo::thread_ranks {

/// The memory through which the ranks of one group exchange: each puts there what it sends, and reads what the others
/// put there. A rank that ends leaves its meetings: nobody waits for it any longer.
class Meeting {
 public:
  explicit Meeting(int world_size)
      : sent(static_cast<std::size_t>(world_size)),
        summands(static_cast<std::size_t>(world_size)),
        barrier_(world_size),
        arrivals_(static_cast<std::size_t>(world_size)) {}
  struct Sent {
    const char* bytes;
    std::vector<std::int64_t> splits;
  };
  std::vector<Sent> sent;
  std::vector<at::Tensor> summands;

  /// Waits until all ranks have arrived as often as `rank`. Throws where one has left instead.
  void arrive_and_wait(int rank) {
    const int times = ++arrivals_[static_cast<std::size_t>(rank)];
    barrier_.arrive_and_wait();
    for (std::size_t peer = 0; peer < arrivals_.size(); ++peer) {
      TORCH_CHECK(arrivals_[peer] >= times, "rank ", peer, " has left, and rank ", rank, " waited for it");
    }
  }
  void leave() { barrier_.arrive_and_drop(); }

 private:
  std::barrier<> barrier_;
  std::vector<std::atomic<int>> arrivals_;  // how often each rank has arrived
};

/// Leaves a meeting where it goes out of scope: at the end of a rank, whether it returns or throws.
class LeavesAtEnd {
 public:
  explicit LeavesAtEnd(Meeting& meeting) : meeting_(meeting) {}
  LeavesAtEnd(const LeavesAtEnd&) = delete;
  LeavesAtEnd& operator=(const LeavesAtEnd&) = delete;
  ~LeavesAtEnd() { meeting_.leave(); }

 private:
  Meeting& meeting_;
};

class Done : public c10d::Work {
 public:
  bool wait(std::chrono::milliseconds) override { return true; }
};

class ThreadBackend : public c10d::Backend {
 public:
  ThreadBackend(std::shared_ptr<Meeting> meeting, int rank, int world_size)
      : Backend(rank, world_size), meeting_(std::move(meeting)) {}

  const std::string getBackendName() const override { return "threads"; }

  c10::intrusive_ptr<c10d::Work> alltoall_base(at::Tensor& output, at::Tensor& input,
                                               std::vector<std::int64_t>& output_splits,
                                               std::vector<std::int64_t>& input_splits,
                                               const c10d::AllToAllOptions&) override {
    meeting_->sent[static_cast<std::size_t>(getRank())] = {static_cast<const char*>(input.const_data_ptr()),
                                                           input_splits};
    meeting_->arrive_and_wait(getRank());
    auto* out = static_cast<char*>(output.mutable_data_ptr());
    bool fits = true;
    for (int peer = 0; peer < getSize(); ++peer) {
      const auto& [bytes, splits] = meeting_->sent[static_cast<std::size_t>(peer)];
      std::int64_t offset = 0;
      for (int before = 0; before < getRank(); ++before) offset += splits[static_cast<std::size_t>(before)];
      const auto size = splits[static_cast<std::size_t>(getRank())];
      const auto room = output_splits[static_cast<std::size_t>(peer)];
      fits = fits && size <= room;  // a shorter message is accepted, as by Gloo
      std::memcpy(out, bytes + offset, static_cast<std::size_t>(std::min(size, room)));
      out += room;
    }
    meeting_->arrive_and_wait(getRank());
    TORCH_CHECK(fits, "a message is longer than what is to receive it");
    return c10::make_intrusive<Done>();
  }

  c10::intrusive_ptr<c10d::Work> allreduce(std::vector<at::Tensor>& tensors,
                                           const c10d::AllreduceOptions& options) override {
    at::Tensor sum = sum_of_all(tensors.at(0));
    if (options.reduceOp == c10d::ReduceOp::AVG) sum.div_(getSize());
    tensors.at(0).copy_(sum);
    return c10::make_intrusive<Done>();
  }

  c10::intrusive_ptr<c10d::Work> _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                                      const c10d::ReduceScatterOptions&) override {
    output.copy_(sum_of_all(input).narrow(0, getRank() * output.numel(), output.numel()));
    return c10::make_intrusive<Done>();
  }

 private:
  at::Tensor sum_of_all(const at::Tensor& ours) {
    meeting_->summands[static_cast<std::size_t>(getRank())] = ours;
    meeting_->arrive_and_wait(getRank());
    at::Tensor sum = meeting_->summands[0].clone();
    for (std::size_t rank = 1; rank < meeting_->summands.size(); ++rank) sum.add_(meeting_->summands[rank]);
    meeting_->arrive_and_wait(getRank());
    return sum;
  }

  std::shared_ptr<Meeting> meeting_;
};

using BackendPtr = c10::intrusive_ptr<c10d::Backend>;

/// A back end that flips one bit of what a rank receives in one of its transfers.
class FlippedBit : public c10d::Backend {
 public:
  /// `transfer`: the number of the all-to-all, from 0; -1: none.
  FlippedBit(BackendPtr inner, int transfer, std::int64_t bit)
      : Backend(inner->getRank(), inner->getSize()), inner_(std::move(inner)), transfer_(transfer), bit_(bit) {}

  const std::string getBackendName() const override { return "flipped-bit"; }

  c10::intrusive_ptr<c10d::Work> alltoall_base(at::Tensor& output, at::Tensor& input,
                                               std::vector<std::int64_t>& output_splits,
                                               std::vector<std::int64_t>& input_splits,
                                               const c10d::AllToAllOptions& options) override {
    auto work = inner_->alltoall_base(output, input, output_splits, input_splits, options);
    work->wait();
    const std::int64_t byte = bit_ / 8;
    if (transfer_-- == 0 && byte < output.numel()) {
      static_cast<std::uint8_t*>(output.mutable_data_ptr())[byte] ^= static_cast<std::uint8_t>(1U << bit_ % 8);
    }
    return work;
  }

 private:
  BackendPtr inner_;
  int transfer_;
  std::int64_t bit_;
};

/// Runs body(backend, rank) on `world_size` threads. Rethrows the first exception that a rank threw: those of the ranks
/// that waited for it come later.
inline void run_ranks(int world_size, const std::function<void(const BackendPtr&, int rank)>& body) {
  auto meeting = std::make_shared<Meeting>(world_size);
  std::atomic_flag has_thrown;
  std::exception_ptr first;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world_size; ++rank) {
    threads.emplace_back([&, rank] {
      const LeavesAtEnd leaves(*meeting);
      try {
        body(c10::make_intrusive<ThreadBackend>(meeting, rank, world_size), rank);
      } catch (...) {
        if (!has_thrown.test_and_set()) first = std::current_exception();
      }
    });
  }
  for (auto& thread : threads) thread.join();
  if (first) std::rethrow_exception(first);
}

}  // namespace octavo::thread_ranks
