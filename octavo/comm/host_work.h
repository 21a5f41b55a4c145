// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include <vector>

namespace octavo {

/// The works of a CPU back end as one, with the caller's tensors as its result: of one call or of several. Done when
/// all are; the first failure counts, in the order of the calls. Thread-safe where the works are.
class HostWork final : public c10d::Work {
 public:
  using Tensors = std::vector<at::Tensor>;
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;

  HostWork(std::vector<WorkPtr> on_cpu, Tensors results);

  bool isCompleted() override;
  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  /// Of the one call; -1 where there are more or none.
  int sourceRank() const override;
  Tensors result() override { return results_; }
  void synchronize() override;
  /// The timeout is for all of them together. Throws what a work throws; works that come later go on.
  bool wait(std::chrono::milliseconds timeout) override;
  void abort() override;
  /// Of the results. Throws the back end's error for messages between two ranks, whose works have no future.
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;

 private:
  const std::vector<WorkPtr> on_cpu_;
  const Tensors results_;
};

}  // namespace octavo
