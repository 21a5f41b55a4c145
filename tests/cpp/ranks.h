// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/ATen.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <algorithm>
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
/// put there.
struct Meeting {
  explicit Meeting(int world_size)
      : barrier(world_size),
        sent(static_cast<std::size_t>(world_size)),
        summands(static_cast<std::size_t>(world_size)) {}
  struct Sent {
    const char* bytes;
    std::vector<std::int64_t> splits;
  };
  std::barrier<> barrier;
  std::vector<Sent> sent;
  std::vector<at::Tensor> summands;
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
    meeting_->barrier.arrive_and_wait();
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
    meeting_->barrier.arrive_and_wait();
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
    meeting_->barrier.arrive_and_wait();
    at::Tensor sum = meeting_->summands[0].clone();
    for (std::size_t rank = 1; rank < meeting_->summands.size(); ++rank) sum.add_(meeting_->summands[rank]);
    meeting_->barrier.arrive_and_wait();
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

/// Runs body(backend, rank) on `world_size` threads. Rethrows the exception of the lowest rank that threw one.
inline void run_ranks(int world_size, const std::function<void(const BackendPtr&, int rank)>& body) {
  auto meeting = std::make_shared<Meeting>(world_size);
  std::vector<std::exception_ptr> thrown(static_cast<std::size_t>(world_size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world_size; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        body(c10::make_intrusive<ThreadBackend>(meeting, rank, world_size), rank);
      } catch (...) {
        thrown[static_cast<std::size_t>(rank)] = std::current_exception();
      }
    });
  }
  for (auto& thread : threads) thread.join();
  for (const auto& exception : thrown) {
    if (exception) std::rethrow_exception(exception);
  }
}

}  // namespace octavo::thread_ranks
