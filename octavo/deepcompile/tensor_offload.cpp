// SPDX-License-Identifier: Apache-2.0
#include "octavo/deepcompile/tensor_offload.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <utility>

#include "octavo/device/pinned.h"
#include "octavo/device/stream_event.h"
#include "octavo/kernels/error.h"

namespace octavo::dc {

namespace {

constexpr const char* kOffloadWhere = "deepcompile.tensor_offload";

/// Returns memory with the order of the values', as far as at::empty_like() keeps it: graphs are compiled for it.
at::Tensor host_memory(const at::Tensor& values, bool is_pinned) {
  if (!is_pinned) return at::empty_like(values, values.options().device(at::kCPU));
  const auto strides = at::empty_like(values, values.options().device(at::kMeta)).strides().vec();
  const at::Tensor memory =
      pinned_zeros({values.numel()}, values.scalar_type(), /*alignment_bytes=*/0, values.device().type());
  const at::AutoDispatchBelowADInplaceOrView no_views;  // a view keeps its base, which would share the storage
  return memory.as_strided(values.sizes(), strides);
}

bool is_free(const at::Tensor& on_host) { return on_host.storage().use_count() == 1; }

/// Whether the host's memory is for values like these.
bool fits(const at::Tensor& on_host, const at::Tensor& values) {
  return on_host.sizes() == values.sizes() && on_host.dtype() == values.dtype() &&
         (on_host.strides() == values.strides() || !values.is_non_overlapping_and_dense());
}

}  // namespace

TensorOffload::Entry& TensorOffload::at(long id) {
  const auto found = entries_.find(id);
  if (found != entries_.end()) return found->second;
  fail(ErrorCode::invalid_argument, kOffloadWhere, "value ", id, " was not sent to the host, which has ",
       entries_.size(), " others: offload it first");
}

at::Tensor TensorOffload::Entry::take_free(const at::Tensor& values) {
  const auto is_other = [&](const at::Tensor& memory) { return is_free(memory) && !fits(memory, values); };
  if (std::ranges::any_of(on_host, is_other)) {  // which copies may still use
    offload_done->synchronize();
    if (reload_done) reload_done->synchronize();
    std::erase_if(on_host, is_other);
  }
  const auto free = std::ranges::find_if(on_host, is_free);
  if (free == on_host.end()) return {};
  const at::Tensor memory = *free;
  on_host.erase(free);
  return memory;
}

at::Tensor TensorOffload::offload(const at::Tensor& values, long id, bool is_pinned) {
  if (!values.defined()) {
    fail(ErrorCode::invalid_argument, kOffloadWhere, "expected a tensor as value ", id, ", got an undefined one");
  }
  const auto found = entries_.find(id);
  const bool is_known = found != entries_.end() && found->second.device == values.device();
  Entry entry = is_known ? found->second : Entry{values.device()};
  at::Tensor memory = entry.take_free(values);
  if (!memory.defined()) memory = host_memory(values, is_pinned);
  entry.on_host.push_back(memory);
  const auto is_current = offload_streams_.hand_over(entry.device).take();
  if (entry.reload_done) entry.reload_done->block(current_stream_of(entry.device));  // it may read that memory
  entry.offload_done = copy_on_stream(memory, values, values);
  entries_.insert_or_assign(id, std::move(entry));
  return at::alias(memory);
}

at::Tensor TensorOffload::wait_offload(long id) {
  const Entry& entry = at(id);
  entry.offload_done->block(current_stream_of(entry.device));
  return at::alias(entry.on_host.back());
}

at::Tensor TensorOffload::reload(const at::Tensor& values, long id) {
  Entry& entry = at(id);
  const auto is_given = [&](const at::Tensor& memory) { return values.defined() && memory.is_alias_of(values); };
  const auto found = std::ranges::find_if(entry.on_host, is_given);
  const at::Tensor& from = found == entry.on_host.end() ? entry.on_host.back() : *found;
  entry.reloaded = at::empty_like(from, from.options().device(entry.device).pinned_memory(false));
  const auto is_current = reload_streams_.hand_over(entry.device).take();
  entry.offload_done->block(current_stream_of(entry.device));
  entry.reload_done = copy_on_stream(entry.reloaded, from, entry.reloaded);
  return entry.reloaded;
}

at::Tensor TensorOffload::wait_reload(long id) {
  const Entry& entry = at(id);
  if (!entry.reloaded.defined()) {
    fail(ErrorCode::invalid_argument, kOffloadWhere, "value ", id, " is on the host: reload it first");
  }
  entry.reload_done->block(current_stream_of(entry.device));
  return entry.reloaded;
}

void TensorOffload::hand_over_reloaded(long id) {
  wait_reload(id);
  at(id).reloaded.reset();
}

void TensorOffload::clear_reloaded() {
  for (auto& [id, entry] : entries_) entry.reloaded.reset();
}

}  // namespace octavo::dc
