// SPDX-License-Identifier: Apache-2.0
// Compressor: what a bucket of gradients must be.
#include <cmath>
#include <set>

#include "octavo/comm/compressor.h"
#include "octavo/comm/small_collectives.h"
#include "octavo/device/dispatch.h"
#include "octavo/kernels/error.h"

namespace octavo {

void Compressor::require_same_on_all_ranks() {
  const std::lock_guard lock(mutex_);
  std::string text = c10::str(plan_->text(), ' ', seed_);
  for (const Parameter& parameter : parameters_) {
    const ParameterInfo& info = parameter.info;
    text += c10::str(' ', info.name, ' ', info.count, ' ', info.rows, ' ', info.exempt, ' ', info.ownership.unit);
  }
  require_same_on_all(*wire_, fingerprint_of(text), kCompressorWhere,
                      "have another plan, seed or other parameters: give all ranks the same");
}

void Compressor::require_parameter(std::size_t parameter, const char* where) const {
  if (parameter < parameters_.size()) return;
  fail(ErrorCode::invalid_argument, where, "expected one of ", parameters_.size(), " parameters, got number ",
       parameter);
}

/// Throws where a bucket is not one of gradients, or a slot is not of a parameter within it.
void Compressor::require_fits(const at::Tensor& bucket, const std::vector<Slot>& slots) const {
  require_gradients(bucket);
  kernels_for(bucket.device());  // throws where it has none
  if (bucket.is_sparse()) require_takes_sparse();
  require_within(bucket, slots);
}

void Compressor::require_gradients(const at::Tensor& bucket) {
  if (!bucket.defined() || !(at::isFloatingType(bucket.scalar_type()) || bucket.is_complex())) {
    fail(ErrorCode::invalid_argument, kCompressorWhere, "expected a bucket of a floating or complex dtype, got ",
         bucket.defined() ? toString(bucket.scalar_type()) : "an undefined tensor");
  }
  if (bucket.is_conj() || bucket.is_neg() || !(bucket.is_sparse() || bucket.is_contiguous())) {
    fail(ErrorCode::invalid_argument, kCompressorWhere,
         "expected a bucket in row-major order, with values of its own, got strides ",
         bucket.is_sparse() ? at::IntArrayRef() : bucket.strides(), " of ", bucket.sizes(),
         bucket.is_conj() || bucket.is_neg() ? ", a view of other values: call clone()" : ": call contiguous()");
  }
  if (bucket.is_sparse() && bucket.is_complex()) {
    fail(ErrorCode::unsupported, kCompressorWhere,
         "a sparse gradient of complex numbers has no plan: let the layer have dense gradients (sparse=False)");
  }
}

void Compressor::require_takes_sparse() const {
  if (host_) {
    fail(ErrorCode::unsupported, kCompressorWhere,
         "a sparse gradient is not cut into the ranges that ranks of a host own: let the layer have dense gradients ",
         "(sparse=False), or leave ranks_per_host out");
  }
  if (collective_ == Collective::reduce_to_owners) {
    fail(ErrorCode::unsupported, kCompressorWhere,
         "a sparse gradient is not cut into what ranks own: let the layer have dense gradients (sparse=False)");
  }
}

/// Throws where a slot is not that of a parameter, or its gradient does not lie within the bucket.
void Compressor::require_within(const at::Tensor& bucket, const std::vector<Slot>& slots) const {
  const std::uint64_t reals = bucket.is_complex() ? 2 : 1, ranks = static_cast<std::uint64_t>(wire_->world_size());
  const std::uint64_t parts = collective_ == Collective::reduce_scatter ? ranks : 1;
  const std::uint64_t room = bucket.is_sparse() ? 0 : reals * static_cast<std::uint64_t>(bucket.numel()) / parts;
  for (const Slot& slot : slots) {
    require_parameter(slot.parameter, kCompressorWhere);
    if (slot.apart || bucket.is_sparse()) continue;
    const ParameterInfo& info = parameters_[slot.parameter].info;
    const std::uint64_t count = parts > 1 ? info.ownership.range_size(info.count, wire_->world_size()) : info.count;
    if (count <= room && reals * slot.offset <= room - count) continue;
    fail(ErrorCode::invalid_argument, kCompressorWhere, "expected ", info.name, ", ", count, " real numbers, within ",
         room, " of a bucket, got it at ", reals * slot.offset);
  }
}

/// Throws where no step is under way, and where it has had one of the parameters: what is remembered of a parameter is
/// read and written once a step.
void Compressor::require_first_use(const std::vector<Slot>& slots) const {
  if (phase_ != Phase::under_way) {
    fail(ErrorCode::invalid_argument, kCompressorWhere,
         "no step is under way: call begin_step() before its first bucket");
  }
  std::set<std::size_t> in_bucket;
  for (const Slot& slot : slots) {
    const Parameter& parameter = parameters_[slot.parameter];
    if (in_bucket.insert(slot.parameter).second && parameter.last_used != steps_here_) continue;
    fail(ErrorCode::invalid_argument, kCompressorWhere, "expected each parameter once in a step, got ",
         parameter.info.name, " again: add up its gradients, or begin another step");
  }
}

void Compressor::require_divisor(std::optional<double> divisor) {
  if (!divisor || (std::isfinite(*divisor) && *divisor > 0)) return;
  fail(ErrorCode::invalid_argument, kCompressorWhere, "expected a finite divisor above 0, got ", *divisor);
}

}  // namespace octavo
