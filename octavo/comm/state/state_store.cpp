// SPDX-License-Identifier: Apache-2.0
#include "octavo/comm/state/state_store.h"

#include <ATen/ATen.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <utility>

#include "octavo/comm/state/packed.h"
#include "octavo/comm/state/redistribute.h"
#include "octavo/kernels/error.h"

namespace octavo {

StateStore::StateStore(std::vector<ParameterInfo> parameters, std::vector<Role> roles, int rank, int world_size,
                       StatePaging paging)
    : parameters_(std::move(parameters)),
      roles_(std::move(roles)),
      rank_(rank),
      world_size_(world_size),
      memory_(std::make_shared<StateMemory>(std::move(paging))) {
  for (std::size_t i = 0; i < parameters_.size(); ++i) index_.emplace(parameters_[i].name, i);
  std::vector<Versioned> empty;
  for (const Role& role : roles_) empty.emplace_back(role.dtype, memory_);
  tensors_.assign(parameters_.size(), empty);
  was_sent_.assign(parameters_.size(), false);
}

Versioned& StateStore::at(std::size_t parameter, const Role& role) {
  for (std::size_t i = 0; i < roles_.size(); ++i) {
    if (is_same(roles_[i], role)) return tensors_[parameter][i];
  }
  fail(ErrorCode::internal, "comm.state_store", "there is no role ", role.name);
}

const at::Tensor& StateStore::pending(std::size_t parameter, const Role& role) {
  const Versioned& one = at(parameter, role);
  return commits(parameter, role) ? one.pending() : one.tensor();
}

void StateStore::prefetch(std::size_t parameter) const {
  for (const Versioned& tensor : tensors_[parameter]) tensor.prefetch();
}

void StateStore::evict(std::size_t parameter) const {
  for (const Versioned& tensor : tensors_[parameter]) tensor.evict();
}

void StateStore::end_step(bool commit) {
  for (std::size_t p = 0; p < tensors_.size(); ++p) {
    for (std::size_t r = 0; r < roles_.size(); ++r) {
      if (commit && commits(p, roles_[r])) {
        tensors_[p][r].commit();
      } else {
        tensors_[p][r].roll_back();
      }
    }
    was_sent_[p] = false;
  }
}

void StateStore::clear() {
  for (auto& of_parameter : tensors_) {
    for (Versioned& tensor : of_parameter) tensor.clear();
  }
}

void StateStore::clear_except(std::size_t parameter, const std::vector<Role>& kept) {
  for (std::size_t r = 0; r < roles_.size(); ++r) {
    const auto is_it = [&](const Role& role) { return is_same(role, roles_[r]); };
    if (std::none_of(kept.begin(), kept.end(), is_it)) tensors_[parameter][r].clear();
  }
}

std::map<std::string, at::Tensor> StateStore::save() const {
  std::map<std::string, at::Tensor> all;
  for (std::size_t p = 0; p < tensors_.size(); ++p) {
    for (std::size_t r = 0; r < roles_.size(); ++r) {
      const at::Tensor& values = tensors_[p][r].tensor();
      if (values.defined()) all[key_of(roles_[r], parameters_[p].name)] = values;
    }
  }
  return all;
}

void StateStore::load(const std::map<std::string, at::Tensor>& tensors) {
  std::vector<std::pair<Place, at::Tensor>> found;
  for (const auto& [key, values] : tensors) {
    const Place place = find_key(key);
    require(values, key, place, rank_, world_size_);
    found.emplace_back(place, memory_->copy(values, c10::kCPU));
  }
  end_step(/*commit=*/false);
  clear();
  for (auto& [place, values] : found) tensors_[place.parameter][place.role].restore(std::move(values));
}

void StateStore::load_world(const std::vector<std::map<std::string, at::Tensor>>& world) {
  if (world.empty()) {
    fail(ErrorCode::invalid_argument, "comm.load_state", "expected the state of at least 1 rank, got none");
  }
  std::map<std::string, std::vector<at::Tensor>> by_key;  // each by old rank
  for (std::size_t rank = 0; rank < world.size(); ++rank) {
    for (const auto& [key, values] : world[rank]) {
      auto& parts = by_key[key];
      parts.resize(world.size());
      require(values, key, find_key(key), static_cast<int>(rank), static_cast<int>(world.size()));
      parts[rank] = values.cpu();
    }
  }
  // Both ends of an estimate, or neither: senders send what differs from it.
  const auto has_whole_estimates = [&](const ParameterInfo& info) {
    return std::ranges::all_of(roles_, [&](const Role& role) {
      const auto found = by_key.find(key_of(role, info.name));
      const std::vector<at::Tensor> none(world.size());
      return is_usable(role.extent, found == by_key.end() ? none : found->second, info.count, info.ownership);
    });
  };
  std::map<std::string, at::Tensor> ours;
  for (const auto& [key, parts] : by_key) {
    const Place place = find_key(key);
    const ParameterInfo& info = parameters_[place.parameter];
    if (is_estimate(roles_[place.role].extent) && !has_whole_estimates(info)) continue;
    ours[key] = redistribute(roles_[place.role].extent, parts, info.count, rank_, world_size_, info.ownership);
  }
  load(ours);
}

std::size_t StateStore::find(const std::string& name, const char* where) const {
  const auto found = index_.find(name);
  if (found != index_.end()) return found->second;
  fail(ErrorCode::invalid_argument, where, "this model has no parameter '", name,
       "' with a gradient: pass names of its own parameters");
}

StateStore::Place StateStore::find_key(const std::string& key) const {
  std::string expected;
  for (std::size_t role = 0; role < roles_.size(); ++role) {
    const std::string prefix = key_of(roles_[role]);
    if (key.starts_with(prefix)) return {find(key.substr(prefix.size()), "comm.load_state"), role};
    expected += (role > 0 ? " or " : "") + prefix + "NAME";
  }
  fail(ErrorCode::invalid_argument, "comm.load_state", "expected keys ", expected, ", got ", key);
}

void StateStore::require(const at::Tensor& values, const std::string& key, Place place, int rank,
                         int world_size) const {
  if (!values.defined() || values.layout() != at::kStrided || values.is_meta()) {
    fail(ErrorCode::invalid_argument, "comm.load_state", "expected a dense tensor with values for ", key, ", got ",
         values.defined() ? c10::str("one in the layout ", values.layout(), " on ", values.device().str()) : "none");
  }
  const Role& role = roles_[place.role];
  const ParameterInfo& info = parameters_[place.parameter];
  const auto expected = [&](auto count_in) {
    return count_in(role.extent, info.count, rank, world_size, info.ownership);
  };
  const std::uint64_t count = role.extent == Extent::shared ? static_cast<std::uint64_t>(values.numel())
                              : role.dtype == at::kByte     ? expected(packed_bytes)
                                                            : expected(count_of);
  if (values.scalar_type() == role.dtype && static_cast<std::uint64_t>(values.numel()) == count) return;
  fail(ErrorCode::invalid_argument, "comm.load_state", "expected ", toString(role.dtype), " with ", count,
       " elements for ", key, " on rank ", rank, " of ", world_size, ", got ", toString(values.scalar_type()), " with ",
       values.numel());
}

}  // namespace octavo
