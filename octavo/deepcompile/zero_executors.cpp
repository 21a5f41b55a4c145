// SPDX-License-Identifier: Apache-2.0
#include "octavo/deepcompile/zero_executors.h"

#include <ATen/ATen.h>
#include <c10/core/StreamGuard.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <utility>

#include "octavo/deepcompile/text.h"
#include "octavo/device/stream_event.h"
#include "octavo/kernels/error.h"

namespace octavo::dc {

namespace {

constexpr const char* kZeroWhere = "deepcompile.zero_executors";

}  // namespace

ReducingExecutor::ReducingExecutor(c10::intrusive_ptr<c10d::ProcessGroup> process_group,
                                   std::shared_ptr<DSParamRegistry> param_registry,
                                   std::shared_ptr<DoubleBufferedReduceBucket> reduce_buckets, std::vector<long> ds_ids,
                                   c10::Stream rs_stream, c10::Stream copy_stream, std::shared_ptr<GradientSum> sum,
                                   std::shared_ptr<const Flags> flags)
    : CustomOpExecutor(std::move(process_group), std::move(param_registry), std::move(reduce_buckets),
                       std::move(ds_ids), rs_stream, copy_stream, required_part(flags, "flags")->pre_div_reduce),
      sum_(required_part(std::move(sum), "a sum of gradients")),
      flags_(std::move(flags)) {
  for (const long id : ds_ids_) sum_->owned(id);  // throws for an unknown one
}

/// First receives what was sent before: one bucket is sent at a time, and its memory fills again after the next swap.
void ReducingExecutor::flushReduceBucket(at::ScalarType scalar_type) {
  receive();
  blockCopyEvents(scalar_type);
  applyPreDivision(scalar_type);
  if (flags_->sync_before_reduce) synchronize(rs_stream_.device());
  {
    const c10::OptionalStreamGuard is_current(rs_stream_);
    const auto bucket = reduce_buckets_->getBuffer(scalar_type);
    sum_->send(bucket->getBuffer().narrow(0, 0, bucket->getOffset()), std::move(reduce_tasks_.at(scalar_type)));
  }
  if (!reduce_buckets_->isDouble() || flags_->sync_after_reduce) receive();
  if (flags_->sync_after_reduce) synchronize(rs_stream_.device());
  performCleanup(scalar_type);
}

void ReducingExecutor::startBackward(bool update) {
  CustomOpExecutor::startBackward(update);
  if (order_) order_->begin_pass();
}

void ReducingExecutor::giveUpPass() {
  CustomOpExecutor::giveUpPass();
  if (order_) order_->give_up_pass();
}

void ReducingExecutor::endBackward() {
  if (order_) send_rest();
  flushAllReduceBuckets();
  receive();
  CustomOpExecutor::endBackward();
  if (!order_) return;
  for (const long id : order_->absent()) {
    if (--param_registry_->accumulation().averages.at(id) == 0) has_acc_grad_.erase(id);
  }
}

/// Ranks tell one another what they have while the last expected bucket is sent.
void ReducingExecutor::send_rest() {
  add_to_bucket(order_->rest());
  order_->send_flags();
  flushAllReduceBuckets();
  add_to_bucket(order_->receive_flags());
}

void ReducingExecutor::takeGrad(at::Tensor grad_tensor, long ds_id) {
  if (!order_) return add_to_bucket(std::move(grad_tensor), ds_id);
  if (!grad_tensor.defined()) return;
  requireGradient(grad_tensor, ds_id);
  add_to_bucket(order_->take(grad_tensor.to(param_registry_->getParam(ds_id).getDtype()), ds_id));
}

void ReducingExecutor::skip(const std::vector<long>& ds_ids) {
  if (order_) add_to_bucket(order_->skip(ds_ids));
}

/// Adds zeros where this rank has no gradient.
void ReducingExecutor::add_to_bucket(GradientOrder::Turns turns) {
  for (GradientOrder::Turn& turn : turns) {
    const DSParam& param = param_registry_->getParam(turn.id);
    const bool is_there = turn.gradient.defined();
    add_to_bucket(is_there ? std::move(turn.gradient)
                           : at::zeros(param.getShape(), at::dtype(param.getDtype()).device(param.getDevice())),
                  turn.id);
  }
}

/// Leaves a gradient on the CPU where it is. Its room in the bucket, which is never written, says how much is to be
/// sent.
void ReducingExecutor::add_to_bucket(at::Tensor gradient, long ds_id) {
  const bool stays =
      gradient.defined() && gradient.is_cpu() && gradient.is_contiguous() && sum_->takes_apart(gradient.scalar_type());
  if (!stays) {
    CustomOpExecutor::reduceGrad(std::move(gradient), ds_id);
    return;
  }
  requireGradient(gradient, ds_id);
  allocate(gradient, ds_id);
  const at::Tensor flat = gradient.view(-1);
  reduce_tasks_[flat.scalar_type()].emplace_back(ds_id, std::move(gradient), flat);
}

void ReducingExecutor::receive() {
  const c10::OptionalStreamGuard is_current(rs_stream_);
  for (const ReduceTask& task : sum_->receive()) deliver(task);
}

void ReducingExecutor::deliver(const ReduceTask& task) {
  const long id = task.getDSId();
  const Range own = sum_->owned(id);
  ++param_registry_->accumulation().averages[id];
  if (own.count == 0) {
    has_acc_grad_[id] = true;
    return;
  }
  const auto first = static_cast<std::int64_t>(own.first), count = static_cast<std::int64_t>(own.count);
  at::Tensor part = task.getSendBuf().narrow(0, first, count);
  if (pre_div_reduce_) part.mul_(process_group_->getSize());  // an average of what was divided before
  at::Tensor buffer = buffer_of(id, count);
  if (std::exchange(has_acc_grad_[id], true)) {
    buffer.add_(part);
  } else {
    buffer.copy_(part);
  }
}

at::Tensor ReducingExecutor::buffer_of(long ds_id, std::int64_t count) const {
  const at::Tensor buffer = param_registry_->getParam(ds_id).getGradBuffer();
  if (buffer.defined() && buffer.numel() >= count) return buffer.flatten().narrow(0, 0, count);
  fail(ErrorCode::invalid_argument, kZeroWhere, "expected the gradient buffer of parameter ", ds_id, " with ", count,
       " elements, which rank ", process_group_->getRank(), " owns of it, got ",
       buffer.defined() ? std::to_string(buffer.numel()) : "none", ": bind it before the backward pass");
}

at::Tensor Z1CustomOpExecutor::reduceGrad(at::Tensor grad_tensor, long ds_id) {
  if (!grad_tensor.defined()) return {};
  requireGradient(grad_tensor, ds_id);
  auto& local = param_registry_->accumulation().local;
  if (!param_updated_) {
    // a copy: autograd may go on to use the gradient
    takeGrad(local.contains(ds_id) ? grad_tensor : grad_tensor.clone(), ds_id);
    return at::empty({0}, grad_tensor.options());
  }
  return ReducingExecutor::reduceGrad(with_earlier(std::move(grad_tensor), ds_id), ds_id);
}

void Z1CustomOpExecutor::takeGrad(at::Tensor grad_tensor, long ds_id) {
  if (!grad_tensor.defined()) return;
  requireGradient(grad_tensor, ds_id);
  at::Tensor sum = with_earlier(std::move(grad_tensor), ds_id);
  if (param_updated_) return ReducingExecutor::takeGrad(std::move(sum), ds_id);
  param_registry_->accumulation().local.insert_or_assign(ds_id, std::move(sum));
}

/// Returns the sum over this step's micro-batches so far, which the registry then no longer has.
at::Tensor Z1CustomOpExecutor::with_earlier(at::Tensor gradient, long ds_id) {
  auto earlier = param_registry_->accumulation().local.extract(ds_id);
  return earlier ? earlier.mapped().add_(gradient) : gradient;
}

/// Reduces, too, what had gradients only in earlier micro-batches.
void Z1CustomOpExecutor::endBackward() {
  if (!param_updated_) return CustomOpExecutor::endBackward();
  auto& local = param_registry_->accumulation().local;
  for (const long id : ds_ids_) {
    const auto left = local.find(id);
    if (left == local.end()) continue;
    at::Tensor sum = std::move(left->second);
    local.erase(left);
    ReducingExecutor::takeGrad(std::move(sum), id);
  }
  ReducingExecutor::endBackward();
}

Z3CustomOpExecutor::Z3CustomOpExecutor(c10::intrusive_ptr<c10d::ProcessGroup> process_group,
                                       std::shared_ptr<DSParamRegistry> param_registry,
                                       std::shared_ptr<DoubleBufferedReduceBucket> reduce_buckets,
                                       std::vector<long> ds_ids, c10::Stream rs_stream, c10::Stream copy_stream,
                                       std::shared_ptr<GradientSum> sum, std::shared_ptr<ParamGather> gather,
                                       std::shared_ptr<FreshGather> fresh, std::shared_ptr<const Flags> flags)
    : ReducingExecutor(std::move(process_group), std::move(param_registry), std::move(reduce_buckets),
                       std::move(ds_ids), rs_stream, copy_stream, std::move(sum), std::move(flags)),
      gather_(required_part(std::move(gather), "a gather of parameters")),
      fresh_(required_part(std::move(fresh), "a gather into new memory")) {}

/// Shards change before the next step. Whole values become stale, also of parameters that other graphs share.
void Z3CustomOpExecutor::endBackward() {
  ReducingExecutor::endBackward();
  uses_.clear();
  for (const long id : ds_ids_) {
    if (param_updated_) param_registry_->setValid(id, false);
  }
}

void Z3CustomOpExecutor::giveUpPass() {
  ReducingExecutor::giveUpPass();
  uses_.clear();
}

void Z3CustomOpExecutor::skipGrads(const std::vector<long>& ds_ids) {
  requireParams(ds_ids);
  skip(ds_ids);
}

void Z3CustomOpExecutor::requireParams(const std::vector<long>& ds_ids) const {
  for (const long id : ds_ids) requireParam(id);
}

at::Tensor Z3CustomOpExecutor::allgatherParam(long ds_id, std::optional<at::ScalarType> dtype) {
  prefetchParamsFused({ds_id}, dtype ? std::vector{*dtype} : std::vector<at::ScalarType>());
  const at::Tensor& whole = param_registry_->getGatheredParam(ds_id);
  const at::ScalarType wanted = dtype.value_or(param_registry_->getParam(ds_id).getDtype());
  if (whole.scalar_type() == wanted) return whole.view(param_registry_->getParam(ds_id).getShape());
  gather_->wait(ds_id);  // it was gathered in another dtype
  return whole.view(param_registry_->getParam(ds_id).getShape()).to(wanted);
}

void Z3CustomOpExecutor::prefetchParamsFused(const std::vector<long>& ds_ids,
                                             const std::vector<at::ScalarType>& dtypes) {
  requireParams(ds_ids);
  gather_->start(ds_ids, dtypes);
}

std::vector<at::Tensor> Z3CustomOpExecutor::allgatherParamsFused(const std::vector<long>& ds_ids,
                                                                 const std::vector<at::ScalarType>& dtypes) {
  requireParams(ds_ids);
  return fresh_->start(ds_ids, dtypes);
}

void Z3CustomOpExecutor::waitParams(at::TensorList gathered, const std::vector<long>& ds_ids) {
  requireParams(ds_ids);
  fresh_->wait(gathered, ds_ids);
}

at::Tensor Z3CustomOpExecutor::waitAllgather(const at::Tensor& v, long ds_id) {
  requireParam(ds_id);
  const at::Tensor& whole = param_registry_->getGatheredParam(ds_id);  // throws where there was no gather
  const std::vector<std::int64_t> shape = param_registry_->getParam(ds_id).getShape();
  const bool is_whole = v.defined() && v.sizes() == at::IntArrayRef(shape);
  // is_alias_of() would look at memory that a collective writes
  const bool is_its_memory = is_whole && v.has_storage() && v.scalar_type() == whole.scalar_type() &&
                             v.storage().unsafeGetStorageImpl() == whole.storage().unsafeGetStorageImpl();
  const bool is_cast = is_whole && v.scalar_type() != whole.scalar_type() && v.device() == whole.device() &&
                       at::isFloatingType(v.scalar_type());
  if (!is_its_memory && !is_cast) {
    fail(ErrorCode::invalid_argument, kZeroWhere, "expected what allgather_param() has returned for parameter ", ds_id,
         ", in the shape [", join_as_str(shape, ", "), "], got ",
         v.defined() ? tensorDimToString(v) + (is_whole ? " in other memory" : "") : "an undefined tensor");
  }
  gather_->wait(ds_id);
  return is_its_memory ? v : param_registry_->getGatheredParam(ds_id).view(shape).to(v.scalar_type());
}

void Z3CustomOpExecutor::releaseParam(long ds_id, long n_users) {
  requireParam(ds_id);
  if (n_users < 1) {
    fail(ErrorCode::invalid_argument, kZeroWhere, "expected at least 1 user of parameter ", ds_id, ", got ", n_users);
  }
  param_registry_->requireGathered(ds_id);
  if (++uses_[ds_id] < n_users) return;
  if (!param_registry_->getParam(ds_id).isPersistent()) param_registry_->releaseGatheredParam(ds_id);
  uses_.erase(ds_id);
}

}  // namespace octavo::dc
