// SPDX-License-Identifier: Apache-2.0
#include "octavo/comm/fsdp_hook.h"

#include <ATen/ATen.h>

#include <utility>

#include "octavo/device/dispatch.h"
#include "octavo/device/host_alias.h"
#include "octavo/kernels/error.h"

namespace octavo {

namespace {

constexpr const char* kHookWhere = "comm.fsdp_hook";

void require_below(std::size_t index, std::size_t number, const char* of) {
  if (index < number) return;
  fail(ErrorCode::invalid_argument, kHookWhere, "expected one of ", number, ' ', of, ", got number ", index);
}

}  // namespace

FsdpHook::FsdpHook(std::shared_ptr<Compressor> compressor, std::vector<std::vector<Member>> groups)
    : compressor_(std::move(compressor)), groups_(std::move(groups)), in_step_(groups_.size()) {
  if (!compressor_) fail(ErrorCode::invalid_argument, kHookWhere, "expected a compressor, got none");
  has_gradient_.resize(compressor_->parameter_count());
  for (const auto& group : groups_) {
    for (const Member& member : group) require_below(member.parameter, has_gradient_.size(), "parameters");
  }
}

void FsdpHook::begin_pass() {
  const std::lock_guard lock(mutex_);
  begins_step_ = true;
}

void FsdpHook::mark(std::size_t parameter) {
  const std::lock_guard lock(mutex_);
  require_below(parameter, has_gradient_.size(), "parameters");
  has_gradient_[parameter] = true;
}

void FsdpHook::reduce_scatter(std::size_t group, at::Tensor output, at::Tensor input, double divisor) {
  const std::lock_guard lock(mutex_);
  const at::Tensor bucket = where_kernels_run(input);
  reduce(group, bucket, static_cast<std::uint64_t>(output.numel()), divisor);
  where_kernels_run(output).copy_(bucket.narrow(0, compressor_->peer_rank() * output.numel(), output.numel()));
  wait_for_current_stream(output.device());
}

void FsdpHook::all_reduce(std::size_t group, at::Tensor shard) {
  const std::lock_guard lock(mutex_);
  reduce(group, where_kernels_run(shard), static_cast<std::uint64_t>(shard.numel()), compressor_->peer_count());
}

void FsdpHook::reduce(std::size_t group, const at::Tensor& bucket, std::uint64_t shard, double divisor) {
  if (failure_) std::rethrow_exception(failure_);
  require_below(group, groups_.size(), "parameter groups");
  try {
    std::vector<Slot> slots = slots_of(group, shard);
    if (begins_step_ || in_step_[group] || !compressor_->is_in_step()) {
      compressor_->begin_step();
      in_step_.assign(groups_.size(), false);
    }
    begins_step_ = false;
    in_step_[group] = true;
    compressor_->reduce(bucket, std::move(slots), divisor);
  } catch (...) {
    failure_ = std::current_exception();  // the ranks no longer agree on which collective is next
    compressor_->abandon_step();
    throw;
  }
}

/// Returns the slots of a group. Most groups come whole. Where one does not, its parameters must have been marked.
std::vector<Slot> FsdpHook::slots_of(std::size_t group, std::uint64_t shard) {
  const std::vector<Member>& members = groups_[group];
  std::uint64_t whole = 0;
  for (const Member& member : members) whole += member.shard_size;
  std::vector<Slot> slots;
  std::uint64_t offset = 0;
  for (const Member& member : members) {
    if (shard == whole || has_gradient_[member.parameter]) {
      slots.push_back({member.parameter, offset});
      offset += member.shard_size;
    }
    has_gradient_[member.parameter] = false;
  }
  if (offset == shard) return slots;
  fail(ErrorCode::invalid_argument, kHookWhere, "FSDP2 reduces ", shard, " elements of a parameter group, and ",
       "the parameters with a gradient have ", offset,
       " elements together: let the model's parameters, and which of them need ",
       "gradients, be those at octavo.compress; where another method than forward() uses parameters, let it use all ",
       "of a group");
}

}  // namespace octavo
