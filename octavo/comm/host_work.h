// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include <vector>

namespace octavo {

/// The works of a CPU back end, of one call or of several, as one work with the caller's tensors as its result. It is
/// done when all of them are. Of several failures the first one in the order of the calls counts, in getFuture() the
/// first one in time. Thread-safe where the works are.
class HostWork final : public c10d::Work {
 public:
  using Tensors = std::vector<at::Tensor>;
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;

  HostWork(std::vector<WorkPtr> on_cpu, Tensors results);

  bool isCompleted() override;
  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  /// Returns the source of the only call; -1 where there are several or none.
  int sourceRank() const override;
  Tensors result() override { return results_; }
  void synchronize() override;
  /// Waits for all works; the timeout is for all of them together. Throws what a work throws; later works continue.
  bool wait(std::chrono::milliseconds timeout) override;
  void abort() override;
  /// Returns a future of the results. Throws the back end's error for messages between two ranks, whose works have no
  /// future.
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;

 private:
  const std::vector<WorkPtr> on_cpu_;
  const Tensors results_;
};

}  // namespace octavo
