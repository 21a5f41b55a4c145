// SPDX-License-Identifier: Apache-2.0
#include "octavo/deepcompile/tensor_offload.h"

#include <ATen/ATen.h>

#include <utility>

#include "octavo/deepcompile/host_copy.h"
#include "octavo/device/pinned.h"
#include "octavo/device/stream_event.h"
#include "octavo/kernels/error.h"

namespace octavo::dc {

namespace {

constexpr const char* kOfOffload = "deepcompile.tensor_offload";

/// Returns memory with the order of the values', as far as at::empty_like() keeps it: graphs are compiled for it.
at::Tensor host_memory(const at::Tensor& values, bool is_pinned) {
  if (!is_pinned) return at::empty_like(values, values.options().device(at::kCPU));
  const auto strides = at::empty_like(values, values.options().device(at::kMeta)).strides().vec();
  const at::Tensor memory =
      pinned_zeros({values.numel()}, values.scalar_type(), /*alignment_bytes=*/0, values.device().type());
  return memory.as_strided(values.sizes(), strides);
}

}  // namespace

TensorOffload::Entry& TensorOffload::at(long id) {
  const auto found = entries_.find(id);
  if (found != entries_.end()) return found->second;
  fail(ErrorCode::invalid_argument, kOfOffload, "value ", id, " was not sent to the host, which has ", entries_.size(),
       " others: offload it first");
}

bool TensorOffload::Entry::fits(const at::Tensor& values) const {
  return on_host.sizes() == values.sizes() && on_host.dtype() == values.dtype() && device == values.device() &&
         (on_host.strides() == values.strides() || !values.is_non_overlapping_and_dense());
}

at::Tensor TensorOffload::offload(const at::Tensor& values, long id, bool is_pinned) {
  if (!values.defined()) {
    fail(ErrorCode::invalid_argument, kOfOffload, "expected a tensor as value ", id, ", got an undefined one");
  }
  const auto found = entries_.find(id);
  Entry entry = found != entries_.end() && found->second.fits(values)
                    ? found->second
                    : Entry{values.device(), host_memory(values, is_pinned)};
  const auto is_current = offload_streams_.hand_over(entry.device).take();
  if (entry.reload_done) entry.reload_done->block(current_stream_of(entry.device));  // it reads that memory
  entry.offload_done = copy_on_stream(entry.on_host, values, values);
  return entries_.insert_or_assign(id, std::move(entry)).first->second.on_host;
}

at::Tensor TensorOffload::wait_offload(long id) {
  const Entry& entry = at(id);
  entry.offload_done->block(current_stream_of(entry.device));
  return entry.on_host;
}

at::Tensor TensorOffload::reload(long id) {
  Entry& entry = at(id);
  entry.reloaded = at::empty_like(entry.on_host, entry.on_host.options().device(entry.device).pinned_memory(false));
  const auto is_current = reload_streams_.hand_over(entry.device).take();
  entry.offload_done->block(current_stream_of(entry.device));
  entry.reload_done = copy_on_stream(entry.reloaded, entry.on_host, entry.reloaded);
  return entry.reloaded;
}

at::Tensor TensorOffload::wait_reload(long id) {
  const Entry& entry = at(id);
  if (!entry.reloaded.defined()) {
    fail(ErrorCode::invalid_argument, kOfOffload, "value ", id, " is on the host: reload it first");
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
