// SPDX-License-Identifier: Apache-2.0
#include "octavo/deepcompile/hosted_states.h"

#include <algorithm>
#include <utility>

namespace octavo::dc {

namespace {

/// is_alias_of() would look at the address, which values that are away do not have.
bool share_memory(const at::Tensor& one, const at::Tensor& other) {
  return one.storage().unsafeGetStorageImpl() == other.storage().unsafeGetStorageImpl();
}

}  // namespace

void HostedStates::set(long ds_id, std::vector<at::Tensor> states) {
  std::vector<HostedTensor>& known = states_[ds_id];
  std::vector<HostedTensor> next;
  for (at::Tensor& state : states) {
    const auto same =
        std::ranges::find_if(known, [&](const HostedTensor& one) { return share_memory(one.values(), state); });
    next.push_back(same != known.end() ? *same : HostedTensor(std::move(state)));
  }
  known = std::move(next);
}

void HostedStates::offload(long ds_id) {
  const auto found = states_.find(ds_id);
  if (found == states_.end()) return;
  for (HostedTensor& state : found->second) state.offload(offload_streams_);
}

void HostedStates::reload(long ds_id) {
  const auto found = states_.find(ds_id);
  if (found == states_.end()) return;
  for (HostedTensor& state : found->second) state.reload(reload_streams_);
}

void HostedStates::wait_offloads() const {
  for (const auto& [id, states] : states_) {
    for (const HostedTensor& state : states) state.wait_for_offload();
  }
}

/// All values are on their way before any are waited for.
void HostedStates::restore() {
  for (auto& [id, states] : states_) {
    for (HostedTensor& state : states) state.reload(reload_streams_);
  }
  for (auto& [id, states] : states_) {
    for (HostedTensor& state : states) {
      state.wait_for_reload();
      state.touch();
    }
  }
}

std::int64_t HostedStates::away_bytes() const {
  std::int64_t bytes = 0;
  for (const auto& [id, states] : states_) {
    for (const HostedTensor& state : states) bytes += state.is_away() ? state.bytes() : 0;
  }
  return bytes;
}

}  // namespace octavo::dc
