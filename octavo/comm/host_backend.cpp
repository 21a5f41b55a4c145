// SPDX-License-Identifier: Apache-2.0
#include "octavo/comm/host_backend.h"

#include <utility>

#include "octavo/device/host_alias.h"

namespace octavo {

namespace {

using Tensors = std::vector<at::Tensor>;

/// The CPU back end's work, with the caller's tensors as its result.
class HostWork final : public c10d::Work {
 public:
  HostWork(c10::intrusive_ptr<c10d::Work> on_cpu, Tensors results)
      : on_cpu_(std::move(on_cpu)), results_(std::move(results)) {}

  bool isCompleted() override { return on_cpu_->isCompleted(); }
  bool isSuccess() const override { return on_cpu_->isSuccess(); }
  std::exception_ptr exception() const override { return on_cpu_->exception(); }
  int sourceRank() const override { return on_cpu_->sourceRank(); }
  Tensors result() override { return results_; }
  void synchronize() override { on_cpu_->synchronize(); }
  bool wait(std::chrono::milliseconds timeout) override { return on_cpu_->wait(timeout); }
  void abort() override { on_cpu_->abort(); }

  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    auto future = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()));
    on_cpu_->getFuture()->addCallback([future, results = results_](c10::ivalue::Future& done) {
      if (done.hasError())
        future->setError(done.exception_ptr());
      else
        future->markCompleted(c10::IValue(results));
    });
    return future;
  }

 private:
  c10::intrusive_ptr<c10d::Work> on_cpu_;
  Tensors results_;
};

/// The memory as the CPU back end takes it, once what the device has to do is done.
at::Tensor on_host(const at::Tensor& tensor) {
  mark_for_host(tensor.device())();
  return host_alias(tensor);
}

template <class Element>
std::vector<Element> on_host(const std::vector<Element>& all) {
  std::vector<Element> aliases;
  for (const Element& one : all) aliases.push_back(on_host(one));
  return aliases;
}

Tensors flat(const std::vector<Tensors>& lists) {
  Tensors all;
  for (const Tensors& list : lists) all.insert(all.end(), list.begin(), list.end());
  return all;
}

HostBackend::WorkPtr work_of(HostBackend::WorkPtr on_cpu, Tensors results) {
  return c10::make_intrusive<HostWork>(std::move(on_cpu), std::move(results));
}

}  // namespace

HostBackend::HostBackend(c10::intrusive_ptr<c10d::Backend> on_cpu)
    : Backend(on_cpu->getRank(), on_cpu->getSize()), on_cpu_(std::move(on_cpu)) {}

HostBackend::WorkPtr HostBackend::broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) {
  Tensors aliases = on_host(tensors);
  return work_of(on_cpu_->broadcast(aliases, options), tensors);
}

HostBackend::WorkPtr HostBackend::allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) {
  Tensors aliases = on_host(tensors);
  return work_of(on_cpu_->allreduce(aliases, options), tensors);
}

HostBackend::WorkPtr HostBackend::allreduce_coalesced(Tensors& tensors,
                                                      const c10d::AllreduceCoalescedOptions& options) {
  Tensors aliases = on_host(tensors);
  return work_of(on_cpu_->allreduce_coalesced(aliases, options), tensors);
}

HostBackend::WorkPtr HostBackend::reduce(Tensors& tensors, const c10d::ReduceOptions& options) {
  Tensors aliases = on_host(tensors);
  return work_of(on_cpu_->reduce(aliases, options), tensors);
}

HostBackend::WorkPtr HostBackend::allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                                            const c10d::AllgatherOptions& options) {
  auto out = on_host(outputs);
  Tensors in = on_host(inputs);
  return work_of(on_cpu_->allgather(out, in, options), flat(outputs));
}

HostBackend::WorkPtr HostBackend::_allgather_base(at::Tensor& output, at::Tensor& input,
                                                  const c10d::AllgatherOptions& options) {
  at::Tensor out = on_host(output), in = on_host(input);
  return work_of(on_cpu_->_allgather_base(out, in, options), {output});
}

HostBackend::WorkPtr HostBackend::allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                                                      const c10d::AllgatherOptions& options) {
  auto out = on_host(outputs);
  Tensors in = on_host(inputs);
  return work_of(on_cpu_->allgather_coalesced(out, in, options), flat(outputs));
}

HostBackend::WorkPtr HostBackend::allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                                  const c10d::AllgatherOptions& options) {
  Tensors out = on_host(outputs), in = on_host(inputs);
  return work_of(on_cpu_->allgather_into_tensor_coalesced(out, in, options), outputs);
}

HostBackend::WorkPtr HostBackend::gather(std::vector<Tensors>& outputs, Tensors& inputs,
                                         const c10d::GatherOptions& options) {
  auto out = on_host(outputs);
  Tensors in = on_host(inputs);
  return work_of(on_cpu_->gather(out, in, options), flat(outputs));
}

HostBackend::WorkPtr HostBackend::scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                          const c10d::ScatterOptions& options) {
  Tensors out = on_host(outputs);
  auto in = on_host(inputs);
  return work_of(on_cpu_->scatter(out, in, options), outputs);
}

HostBackend::WorkPtr HostBackend::reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                                 const c10d::ReduceScatterOptions& options) {
  Tensors out = on_host(outputs);
  auto in = on_host(inputs);
  return work_of(on_cpu_->reduce_scatter(out, in, options), outputs);
}

HostBackend::WorkPtr HostBackend::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                                       const c10d::ReduceScatterOptions& options) {
  at::Tensor out = on_host(output), in = on_host(input);
  return work_of(on_cpu_->_reduce_scatter_base(out, in, options), {output});
}

HostBackend::WorkPtr HostBackend::reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                                  const c10d::ReduceScatterOptions& options) {
  Tensors out = on_host(outputs), in = on_host(inputs);
  return work_of(on_cpu_->reduce_scatter_tensor_coalesced(out, in, options), outputs);
}

HostBackend::WorkPtr HostBackend::alltoall_base(at::Tensor& output, at::Tensor& input,
                                                std::vector<std::int64_t>& output_sizes,
                                                std::vector<std::int64_t>& input_sizes,
                                                const c10d::AllToAllOptions& options) {
  at::Tensor out = on_host(output), in = on_host(input);
  return work_of(on_cpu_->alltoall_base(out, in, output_sizes, input_sizes, options), {output});
}

HostBackend::WorkPtr HostBackend::alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& options) {
  Tensors out = on_host(outputs), in = on_host(inputs);
  return work_of(on_cpu_->alltoall(out, in, options), outputs);
}

HostBackend::WorkPtr HostBackend::send(Tensors& tensors, int rank, int tag) {
  Tensors aliases = on_host(tensors);
  return work_of(on_cpu_->send(aliases, rank, tag), {});
}

HostBackend::WorkPtr HostBackend::recv(Tensors& tensors, int rank, int tag) {
  Tensors aliases = on_host(tensors);
  return work_of(on_cpu_->recv(aliases, rank, tag), tensors);
}

HostBackend::WorkPtr HostBackend::recvAnysource(Tensors& tensors, int tag) {
  Tensors aliases = on_host(tensors);
  return work_of(on_cpu_->recvAnysource(aliases, tag), tensors);
}

HostBackend::WorkPtr HostBackend::barrier(const c10d::BarrierOptions& options) { return on_cpu_->barrier(options); }

}  // namespace octavo
