// SPDX-License-Identifier: Apache-2.0
#include "octavo/deepcompile/fresh_gather.h"

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

#include "octavo/deepcompile/memory_access.h"
#include "octavo/deepcompile/text.h"
#include "octavo/kernels/error.h"

namespace octavo::dc {

namespace {

constexpr const char* kFreshGatherWhere = "deepcompile.fresh_gather";

}  // namespace

std::vector<at::Tensor> FreshGather::start(std::span<const long> ids, std::span<const at::ScalarType> dtypes) {
  const c10::InferenceMode kept_for_training(false);  // what is allocated here may outlive an evaluation
  const std::vector<at::ScalarType> wanted = gather_->dtypes_of(ids, dtypes);
  std::vector<at::Tensor> fresh;
  RoomsOfCall rooms(*registry_);
  for (std::size_t i = 0; i < ids.size(); ++i) fresh.push_back(make_room(ids[i], wanted[i], rooms));
  gather_->start(ids, wanted);
  rooms.keep();
  for (const long id : ids) ++awaited_[id];
  for (const at::Tensor& room : fresh) allow_access(room);  // compilers copy the memory that wait() then writes to
  return fresh;
}

/// Returns memory for the whole values. A collective writes straight to it where nothing is there or on its way. Memory
/// of what was fetched ahead is handed over.
at::Tensor FreshGather::make_room(long id, at::ScalarType dtype, RoomsOfCall& rooms) {
  const DSParam& param = registry_->getParam(id);
  const bool is_kept = param.isPersistent(), comes = gather_->has(id, dtype);
  const bool was_ahead = !is_kept && comes && awaited_[id] == 0 && is_kept_by_registry_alone(id);
  if (was_ahead && registry_->getGatheredParam(id).scalar_type() == dtype) {
    return registry_->getGatheredParam(id);
  }
  if (!comes) gather_->wait(id);  // a transfer in another dtype writes to what is registered
  at::Tensor room = at::empty(param.getShape(), at::dtype(dtype).device(param.getDevice()));
  if (!is_kept && !comes) rooms.add(id, room);
  return room;
}

void FreshGather::wait(at::TensorList gathered, std::span<const long> ids) {
  if (gathered.size() != ids.size()) {
    fail(ErrorCode::invalid_argument, kFreshGatherWhere, "expected ", ids.size(),
         " gathered tensors, one for each parameter, got ", gathered.size());
  }
  for (std::size_t i = 0; i < ids.size(); ++i) wait_one(gathered[i], ids[i]);
}

void FreshGather::wait_one(const at::Tensor& gathered, long id) {
  const c10::InferenceMode kept_for_training(false);
  const DSParam& param = registry_->getParam(id);
  int& awaited = awaited_[id];
  if (awaited == 0) {
    fail(ErrorCode::invalid_argument, kFreshGatherWhere, "parameter ", id,
         " was not gathered since it was last waited ", "for: wait once for each gather");
  }
  if (gathered.sizes() != at::IntArrayRef(param.getShape())) {
    fail(ErrorCode::invalid_argument, kFreshGatherWhere, "expected gathered parameter ", id, " as [",
         join_as_str(param.getShape(), ", "), "], got ", gathered.sizes());
  }
  gather_->wait(id);
  const bool is_valid = registry_->isValid(id), is_needed = --awaited > 0 || param.isPersistent();
  const bool is_its_memory = registry_->getGatheredParam(id).is_alias_of(gathered);
  if (!is_its_memory) gathered.copy_(registry_->getGatheredParam(id), /*non_blocking=*/true);
  if (is_its_memory && is_needed) {
    registry_->registerGatheredParam(id, gathered.clone());
    registry_->setValid(id, is_valid);
  } else if (!is_needed && (is_its_memory || is_kept_by_registry_alone(id))) {
    registry_->unregisterGatheredParam(id);
  }
}

void FreshGather::require_waited(std::span<const long> ids) {
  std::vector<std::string> names;
  for (const long id : ids) {
    const auto found = awaited_.find(id);
    if (found == awaited_.end() || found->second == 0) continue;
    names.push_back(registry_->nameOf(id));
    found->second = 0;
  }
  if (names.empty()) return;
  fail(ErrorCode::invalid_argument, kFreshGatherWhere, "the gather of ", join_as_str(names, ", ", 200),
       " was not waited ",
       "for, and what was computed with it may be wrong: call wait_params after each allgather_params_fused, before ",
       "its results are used");
}

void FreshGather::require_all_waited() {
  std::vector<long> ids;
  for (const auto& [id, starts] : awaited_) ids.push_back(id);
  std::ranges::sort(ids);
  require_waited(ids);
}

bool FreshGather::is_kept_by_registry_alone(long id) const {
  const at::Tensor& whole = registry_->getGatheredParam(id);
  return whole.use_count() == 1 && whole.storage().use_count() == 1;
}

}  // namespace octavo::dc
