// SPDX-License-Identifier: Apache-2.0
#include "octavo/comm/host_backend.h"

#include <utility>

#include "octavo/comm/host_work.h"
#include "octavo/device/dispatch.h"
#include "octavo/device/host_alias.h"
#include "octavo/kernels/error.h"

namespace octavo {

namespace {

using Tensors = std::vector<at::Tensor>;

/// Returns the memory as the CPU back end takes it, after the device's current stream has finished its work.
at::Tensor on_host(const at::Tensor& tensor) {
  wait_for_current_stream(tensor.device());
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

c10d::Backend& required_backend(const c10::intrusive_ptr<c10d::Backend>& on_cpu) {
  if (!on_cpu) fail(ErrorCode::invalid_argument, "comm.host_backend", "expected a back end for the CPU, got none");
  return *on_cpu;
}

}  // namespace

HostBackend::HostBackend(c10::intrusive_ptr<c10d::Backend> on_cpu)
    : Backend(required_backend(on_cpu).getRank(), required_backend(on_cpu).getSize()), on_cpu_(std::move(on_cpu)) {}

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

HostBackend::WorkPtr HostBackend::barrier(const c10d::BarrierOptions& options) {
  return work_of(on_cpu_->barrier(options), {});
}

HostBackend::WorkPtr HostBackend::work_of(WorkPtr on_cpu, const Tensors& results) {
  const std::lock_guard lock(mutex_);
  if (coalesced_) {
    coalesced_->works.push_back(on_cpu);
    coalesced_->results.insert(coalesced_->results.end(), results.begin(), results.end());
  }
  return c10::make_intrusive<HostWork>(std::vector{std::move(on_cpu)}, results);
}

void HostBackend::startCoalescing() {
  const std::lock_guard lock(mutex_);
  coalesced_ = Coalesced{};  // forgets what an exception left there
}

HostBackend::WorkPtr HostBackend::endCoalescing() {
  const std::lock_guard lock(mutex_);
  if (!coalesced_) {
    fail(ErrorCode::invalid_argument, "comm.host_backend",
         "endCoalescing was called without startCoalescing: call startCoalescing first");
  }
  auto all = c10::make_intrusive<HostWork>(std::move(coalesced_->works), std::move(coalesced_->results));
  coalesced_.reset();
  return all;
}

}  // namespace octavo
