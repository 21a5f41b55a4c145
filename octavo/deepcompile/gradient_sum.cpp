// SPDX-License-Identifier: Apache-2.0
#include "octavo/deepcompile/gradient_sum.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <utility>

#include "octavo/deepcompile/error_context.h"
#include "octavo/deepcompile/text.h"
#include "octavo/kernels/error.h"

namespace octavo::dc {

namespace {

std::vector<ParameterInfo> infos_of(const std::vector<SummedParam>& params) {
  std::vector<ParameterInfo> infos;
  for (const SummedParam& param : params) {
    infos.push_back(
        {param.name, productDim(param.shape), param.exempt, rows_of(param.shape), Ownership::equal_ranges()});
  }
  return infos;
}

}  // namespace

GradientSum::GradientSum(std::unique_ptr<Wire> wire, const Plan& plan, std::vector<SummedParam> params,
                         StatePaging paging, std::uint64_t seed)
    : params_(std::move(params)) {
  for (std::size_t i = 0; i < params_.size(); ++i) indices_.emplace(params_[i].id, i);
  compressor_ = std::make_unique<Compressor>(
      std::move(wire), plan, infos_of(params_),
      CompressorOptions{.collective = Collective::reduce_to_owners, .paging = std::move(paging), .seed = seed});
}

std::size_t GradientSum::index_of(long id) const {
  const auto found = indices_.find(id);
  if (found != indices_.end()) return found->second;
  fail(ErrorCode::invalid_argument, "deepcompile.gradient_sum", "parameter ", id, " is none of the ", params_.size(),
       " whose gradients are summed up: register it before the first graph");
}

Range GradientSum::owned(long id) const {
  const std::uint64_t count = productDim(params_[index_of(id)].shape);
  return owned_range(count, compressor_->peer_rank(), compressor_->peer_count(), Ownership::equal_ranges());
}

void GradientSum::begin_pass() {
  is_split_ = false;
  compressor_->begin_step();
}

/// A transfer that nobody waits for still reaches the other ranks, and its memory is its own.
void GradientSum::give_up_pass() {
  job_.reset();
  sent_.clear();
  compressor_->abandon_step();
}

void GradientSum::send(const at::Tensor& bucket, std::vector<ReduceTask> tasks) {
  std::vector<Slot> slots;
  bool comes_again = false;
  for (const ReduceTask& task : tasks) {
    const at::Tensor values = task.getSendBuf();
    const std::int64_t offset = values.storage_offset() - bucket.storage_offset();
    if (values.is_alias_of(bucket)) {
      slots.push_back({index_of(task.getDSId()), static_cast<std::uint64_t>(offset)});
    } else {
      slots.push_back({index_of(task.getDSId()), 0, values.mutable_data_ptr()});
    }
    comes_again |= compressor_->was_in_bucket(slots.back().parameter);
  }
  // What is remembered of a parameter is read and written once a step. A parameter of several graphs needs several
  // steps.
  if (comes_again) {
    compressor_->begin_step();
    is_split_ = true;
  }
  sent_ = std::move(tasks);
  with_context([&] { return context(); }, [&] { job_ = compressor_->begin(bucket, std::move(slots)); });
}

std::vector<ReduceTask> GradientSum::receive() {
  if (!job_) return {};
  std::unique_ptr<Compressor::Job> job = std::move(job_);
  with_context([&] { return context(); },
               [&] {
                 while (Compressor::is_to_advance(*job)) compressor_->advance(*job);
                 compressor_->finish(std::move(job));
               });
  return std::exchange(sent_, {});
}

std::string GradientSum::context() const {
  std::vector<std::string> names;
  for (const ReduceTask& task : sent_) names.push_back(params_[index_of(task.getDSId())].name);
  return "the sum of the gradients of " + join_as_str(names, ", ", 200);
}

}  // namespace octavo::dc
