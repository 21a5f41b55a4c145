// SPDX-License-Identifier: Apache-2.0
#include "octavo/comm/all_reduce.h"

#include <ATen/MemoryOverlap.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <utility>

#include "octavo/comm/schedule/linear_sum.h"
#include "octavo/comm/small_collectives.h"
#include "octavo/comm/wire.h"
#include "octavo/device/dispatch.h"
#include "octavo/device/host_alias.h"
#include "octavo/kernels/error.h"

namespace octavo {

namespace {

constexpr std::uint64_t kOnlyStep = 1;

/// Throws Error invalid_argument for a plan of which a single call cannot make anything.
void require_single(const ParameterPlan& plan, ReduceOp op) {
  if (plan.choices) {
    fail(ErrorCode::invalid_argument, "comm.all_reduce", "the plan ", plan.text(),
         " measures over many steps, and a single call has none: name the plan, such as ",
         plan.choices->at(1).codec->text(), ", or use octavo.compress");
  }
  if (plan.compares()) {
    fail(ErrorCode::invalid_argument, "comm.all_reduce", "the plan ", plan.text(),
         " compares values with those of the call before, and a single call keeps nothing: use the codec inside lsh, ",
         "such as int4, or octavo.compress");
  }
  if (plan.feedback) {
    fail(ErrorCode::invalid_argument, "comm.all_reduce", "the plan ", plan.text(),
         " remembers what was sent before, and a single call keeps nothing: use the plan without +",
         plan.feedback->text(), ", or octavo.compress, which does");
  }
  if (plan.warm_up) {
    fail(ErrorCode::invalid_argument, "comm.all_reduce", "the plan ", plan.text(),
         " begins with a warm-up, and a single call has no steps: use the plan without +warmup, or octavo.compress");
  }
  if (plan.over_hits && op == ReduceOp::sum) {
    fail(ErrorCode::invalid_argument, "comm.all_reduce", "the plan ", plan.text(),
         " averages over the ranks that sent a value, and a sum is no average: ask for the average, or use the plan ",
         "without +hits");
  }
}

void require_reducible(const at::Tensor& tensor, const Plan& plan, ReduceOp op) {
  if (!tensor.defined())
    fail(ErrorCode::invalid_argument, "comm.all_reduce", "expected a tensor, got an undefined one");
  if (!plan.rules.empty()) {
    fail(ErrorCode::invalid_argument, "comm.all_reduce", "the plan ", plan.text(),
         " has rules for parameters, and a single call has none: use the plan of this tensor");
  }
  require_single(plan.general, op);
  if (tensor.layout() != at::kStrided) {
    fail(ErrorCode::unsupported, "comm.all_reduce", "expected a dense tensor, got ", tensor.layout());
  }
  if (at::has_internal_overlap(tensor) == at::MemOverlap::Yes) {
    fail(ErrorCode::invalid_argument, "comm.all_reduce", "expected a tensor with memory for each element, got strides ",
         tensor.strides(), " of ", tensor.sizes(), ", as expand() makes them: call contiguous()");
  }
  if (!at::isFloatingType(tensor.scalar_type())) {
    fail(ErrorCode::wrong_type, "comm.all_reduce", "expected a real floating tensor, got ",
         toString(tensor.scalar_type()));
  }
}

Mapping mapping(const ParameterPlan& plan, const at::Tensor& tensor) {
  const auto count = static_cast<std::uint64_t>(tensor.numel());
  const std::uint64_t rows = rows_of(tensor.sizes());
  const Matrix shape = {rows, count / rows};
  if (!plan.map || plan.map->image_sizes(shape, kOnlyStep).empty()) return {};
  return {plan.map.get(), shape, kOnlyStep};
}

/// Returns the key from which all ranks draw alike.
std::uint64_t key_of(const ParameterPlan& plan, std::uint64_t call, std::uint64_t seed) {
  std::uint64_t key = rules::derive_key(call, plan.map ? plan.map->fingerprint() : plan.codec->fingerprint());
  if (plan.down) key = rules::derive_key(key, plan.down->fingerprint());
  if (plan.over_hits) key = rules::derive_key(key, 1);
  return rules::seeded_key(key, seed);
}

/// Whether the back end sums up the values in their own dtype. None knows floats of 8 bits, which are sent in float32.
/// So are those of float16 for an average: their sum may be too large where the average is not.
bool is_summed_as_it_is(const ParameterPlan& plan, const at::Tensor& tensor, ReduceOp op) {
  const bool may_overflow = op == ReduceOp::average && tensor.scalar_type() == at::kHalf;
  return plan.dense() && tensor.element_size() > 1 && !may_overflow;
}

/// Returns a digest of all that the ranks must agree on. It has the dtype in it where values are sent in their dtype.
std::uint64_t digest_of(std::uint64_t key, const ParameterPlan& plan, const at::Tensor& tensor, ReduceOp op) {
  std::uint64_t digest = rules::derive_key(key, static_cast<std::uint64_t>(op));
  if (is_summed_as_it_is(plan, tensor, op)) {
    digest = rules::derive_key(digest, static_cast<std::uint64_t>(tensor.scalar_type()));
  }
  digest = rules::derive_key(digest, static_cast<std::uint64_t>(tensor.numel()));
  return rules::derive_key(digest, rows_of(tensor.sizes()));
}

}  // namespace

void all_reduce(at::Tensor& result, const Plan& plan, c10::intrusive_ptr<c10d::Backend> backend, ReduceOp op,
                std::chrono::milliseconds timeout, std::uint64_t call, std::uint64_t seed) {
  require_reducible(result, plan, op);
  const ParameterPlan& general = plan.general;
  const at::NoGradGuard not_differentiated;
  const at::Tensor tensor = where_kernels_run(result);
  Wire wire(std::move(backend), timeout);
  const double divisor = op == ReduceOp::average ? wire.world_size() : 1;
  const std::uint64_t key = key_of(general, call, seed), digest = digest_of(key, general, tensor, op);
  // before anything else is sent: messages of other sizes than a rank expects would end its process (Wire::room_for),
  // and sizes alone do not tell an average from a sum
  require_same_on_all(wire, digest, "comm.all_reduce",
                      "call it with tensors of other sizes, or with another plan, operation, seed or number of the "
                      "call: let all ranks make the same calls in the same order");
  if (is_summed_as_it_is(general, tensor, op)) {
    at::Tensor values = tensor.to(at::TensorOptions(at::kCPU), /*non_blocking=*/false, /*copy=*/true).contiguous();
    wire.all_reduce(values);
    result.copy_(values.mul_(1.0 / divisor));
    return wait_for_current_stream(result.device());
  }
  at::Tensor values = tensor.to(at::kFloat, /*non_blocking=*/false, /*copy=*/true).contiguous();
  PhaseSeconds seconds;
  const auto [up, down] = general.at(kOnlyStep);
  Contribution all{values.mutable_data_ptr<float>(), static_cast<std::uint64_t>(values.numel()), up, down};
  all.over_hits = all.codes_own = general.over_hits;
  all.shared_key = key;
  all.rounding_key = rules::derive_key(key, static_cast<std::uint64_t>(wire.rank()));
  all.mapping = mapping(general, tensor);
  LinearSum(wire, seconds, tensor.device()).run({values, {all}, divisor, digest});
  // Rounded before it is copied: a NaN then has the same bits whatever the strides.
  result.copy_(values.to(result.scalar_type()));
  wait_for_current_stream(result.device());
}

}  // namespace octavo
