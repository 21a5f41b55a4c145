// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <mutex>
#include <optional>
#include <vector>

#include "octavo/export.h"

namespace octavo {

/// Collectives on tensors of a device whose memory the host reads (host_alias). A CPU back end such as Gloo does them
/// on that memory, without copies. A call first waits for what the device's current stream was given; the tensors are
/// ready when the returned work is done. What the CPU back end refuses is refused with its message. Thread-safe where
/// the CPU back end is.
class OCTAVO_API HostBackend final : public c10d::Backend {
 public:
  explicit HostBackend(c10::intrusive_ptr<c10d::Backend> on_cpu);

  using Tensors = std::vector<at::Tensor>;
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;

  const std::string getBackendName() const override { return "octavo"; }
  void setTimeout(std::chrono::milliseconds timeout) override { on_cpu_->setTimeout(timeout); }
  void setSequenceNumberForGroup() override { on_cpu_->setSequenceNumberForGroup(); }
  std::uint64_t getSequenceNumberForGroup() override { return on_cpu_->getSequenceNumberForGroup(); }
  void abort() override { on_cpu_->abort(); }
  void shutdown() override { on_cpu_->shutdown(); }

  bool supportsCoalescing() const override { return true; }
  /// Calls between startCoalescing() and endCoalescing() run at once and return works of their own, as they do
  /// otherwise. The work of endCoalescing() covers all calls since startCoalescing(). endCoalescing() throws Error
  /// invalid_argument without startCoalescing().
  void startCoalescing() override;
  WorkPtr endCoalescing() override;

  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override;
  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override;
  WorkPtr allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) override;
  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& options) override;
  WorkPtr allgather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) override;
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& options) override;
  WorkPtr allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                              const c10d::AllgatherOptions& options) override;
  WorkPtr allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::AllgatherOptions& options) override;
  WorkPtr gather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::GatherOptions& options) override;
  WorkPtr scatter(Tensors& outputs, std::vector<Tensors>& inputs, const c10d::ScatterOptions& options) override;
  WorkPtr reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                         const c10d::ReduceScatterOptions& options) override;
  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                               const c10d::ReduceScatterOptions& options) override;
  WorkPtr reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::ReduceScatterOptions& options) override;
  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<std::int64_t>& output_sizes,
                        std::vector<std::int64_t>& input_sizes, const c10d::AllToAllOptions& options) override;
  WorkPtr alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& options) override;
  WorkPtr send(Tensors& tensors, int rank, int tag) override;
  WorkPtr recv(Tensors& tensors, int rank, int tag) override;
  WorkPtr recvAnysource(Tensors& tensors, int tag) override;
  WorkPtr barrier(const c10d::BarrierOptions& options) override;

 private:
  /// Returns the CPU back end's work with the caller's tensors as its result, and remembers it between
  /// startCoalescing() and endCoalescing().
  WorkPtr work_of(WorkPtr on_cpu, const Tensors& results);

  struct Coalesced {
    std::vector<WorkPtr> works;
    Tensors results;
  };
  const c10::intrusive_ptr<c10d::Backend> on_cpu_;
  std::mutex mutex_;
  std::optional<Coalesced> coalesced_;  // the calls since startCoalescing()
};

}  // namespace octavo
