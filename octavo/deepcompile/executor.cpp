// SPDX-License-Identifier: Apache-2.0
#include "octavo/deepcompile/executor.h"

#include <ATen/ATen.h>
#include <c10/core/StreamGuard.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <algorithm>
#include <utility>

#include "octavo/deepcompile/text.h"
#include "octavo/device/stream_event.h"
#include "octavo/kernels/error.h"

namespace octavo::dc {

namespace {

constexpr const char* kExecutorWhere = "deepcompile.executor";

}  // namespace

CustomOpExecutor::CustomOpExecutor(c10::intrusive_ptr<c10d::ProcessGroup> process_group,
                                   std::shared_ptr<DSParamRegistry> param_registry,
                                   std::shared_ptr<DoubleBufferedReduceBucket> reduce_buckets, std::vector<long> ds_ids,
                                   c10::Stream rs_stream, c10::Stream copy_stream, bool pre_div_reduce)
    : process_group_(required_part(std::move(process_group), "a process group")),
      param_registry_(required_part(std::move(param_registry), "a registry of parameters")),
      reduce_buckets_(required_part(std::move(reduce_buckets), "buckets of gradients")),
      ds_ids_(std::move(ds_ids)),
      rs_stream_(rs_stream),
      copy_stream_(copy_stream),
      reduce_tasks_(reduce_buckets_->tasks()),
      has_acc_grad_(param_registry_->accumulation().reduced),
      pre_div_reduce_(pre_div_reduce),
      computed_(make_event(copy_stream.device_type(), /*timing=*/false)),
      copied_(make_event(copy_stream.device_type(), /*timing=*/false)) {
  for (const long id : ds_ids_) param_registry_->getParam(id);  // throws for an unknown one
}

CustomOpExecutor::~CustomOpExecutor() = default;

bool CustomOpExecutor::hasParam(long ds_id) const { return std::ranges::find(ds_ids_, ds_id) != ds_ids_.end(); }

void CustomOpExecutor::requireParam(long ds_id) const {
  if (hasParam(ds_id)) return;
  fail(ErrorCode::invalid_argument, kExecutorWhere, "parameter ", ds_id, " does not belong to this graph, which has [",
       join_as_str(ds_ids_, ", ", 100), "]");
}

void CustomOpExecutor::requireGradient(const at::Tensor& gradient, long ds_id) const {
  requireParam(ds_id);
  const DSParam& param = param_registry_->getParam(ds_id);
  if (gradient.layout() != at::kStrided) {
    fail(ErrorCode::unsupported, kExecutorWhere, "the gradient of ", param_registry_->nameOf(ds_id),
         " is sparse, which ", "ZeRO does not add up: use sparse=False in its nn.Embedding");
  }
  const std::vector<std::int64_t> shape = param.getShape();
  const bool is_flat = gradient.dim() == 1 && gradient.numel() == static_cast<std::int64_t>(productDim(shape));
  if ((is_flat || gradient.sizes() == at::IntArrayRef(shape)) && gradient.device() == param.getDevice() &&
      at::isFloatingType(gradient.scalar_type())) {
    return;
  }
  fail(ErrorCode::invalid_argument, kExecutorWhere, "expected the gradient of parameter ", ds_id,
       " as floats of shape [", join_as_str(shape, ", "), "], or flat, on ", param.getDevice().str(), ", got ",
       at::toString(gradient.scalar_type()), gradient.sizes(), " on ", gradient.device().str());
}

/// Whether the bucket already has a gradient of the parameter, from another graph: a parameter is in a transfer once.
bool CustomOpExecutor::isInBucket(at::ScalarType dtype, long ds_id) const {
  const auto found = reduce_tasks_.find(dtype);
  return found != reduce_tasks_.end() &&
         std::ranges::find(found->second, ds_id, &ReduceTask::getDSId) != found->second.end();
}

at::Tensor CustomOpExecutor::reduceGrad(at::Tensor grad_tensor, long ds_id) {
  if (!grad_tensor.defined()) return {};
  requireGradient(grad_tensor, ds_id);
  const at::ScalarType dtype = grad_tensor.scalar_type();
  const at::Tensor slice = allocate(grad_tensor, ds_id);
  reduce_buckets_->getEvent(dtype)->block(copy_stream_);
  computed_->record(current_stream_of(copy_stream_.device()));
  computed_->block(copy_stream_);
  {
    const c10::OptionalStreamGuard is_current(copy_stream_);
    slice.copy_(grad_tensor.flatten(), /*non_blocking=*/true);
  }
  reduce_tasks_[dtype].emplace_back(ds_id, std::move(grad_tensor), slice);
  return at::empty({0}, slice.options());
}

void CustomOpExecutor::blockOnCopies() {
  copied_->record(copy_stream_);
  copied_->block(current_stream_of(copy_stream_.device()));
}

at::Tensor CustomOpExecutor::allocate(const at::Tensor& gradient, long ds_id) {
  const at::ScalarType dtype = gradient.scalar_type();
  const std::int64_t count = gradient.numel();
  // Not shouldFlush(), which goes by what a bucket has grown to. A rank that gave up a pass has new buckets, and would
  // send other gradients together than the other ranks do.
  const std::int64_t used = reduce_buckets_->getBuffer(dtype)->getOffset();
  const bool has_no_room = used > 0 && count > reduce_buckets_->getInitialSize() - used;
  if (has_no_room || isInBucket(dtype, ds_id)) flushReduceBucket(dtype);
  const auto bucket = reduce_buckets_->getBuffer(dtype);
  bucket->reserve(count);
  return bucket->allocate(count);
}

void CustomOpExecutor::endBackward() {
  flushAllReduceBuckets();
  const auto reduced = make_event(rs_stream_.device_type(), /*timing=*/false);
  reduced->record(rs_stream_);
  reduced->block(current_stream_of(rs_stream_.device()));
}

/// Copies from gradients whose memory is freed here may still be under way.
void CustomOpExecutor::giveUpPass() {
  blockOnCopies();
  reduce_buckets_->clear();
}

void CustomOpExecutor::flushAllReduceBuckets() {
  std::vector<at::ScalarType> dtypes;  // a copy: flushReduceBucket() erases them
  for (const auto& [dtype, tasks] : reduce_tasks_) dtypes.push_back(dtype);
  std::ranges::sort(dtypes);  // in the same order on all ranks
  for (const at::ScalarType dtype : dtypes) flushReduceBucket(dtype);
}

void CustomOpExecutor::blockCopyEvents(at::ScalarType) {
  copied_->record(copy_stream_);
  copied_->block(rs_stream_);
}

void CustomOpExecutor::applyPreDivision(at::ScalarType scalar_type) {
  if (!pre_div_reduce_) return;
  const c10::OptionalStreamGuard is_current(rs_stream_);
  for (const ReduceTask& task : reduce_tasks_.at(scalar_type)) task.getSendBuf().div_(process_group_->getSize());
}

c10d::ReduceOp CustomOpExecutor::getReductionOp() const {
  return pre_div_reduce_ ? c10d::ReduceOp::SUM : c10d::ReduceOp::AVG;
}

void CustomOpExecutor::performCleanup(at::ScalarType scalar_type) {
  reduce_buckets_->swap(scalar_type, rs_stream_, copy_stream_);
  copied_->block(current_stream_of(copy_stream_.device()));
  reduce_tasks_.erase(scalar_type);
}

}  // namespace octavo::dc
