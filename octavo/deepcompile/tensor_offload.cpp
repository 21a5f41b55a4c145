// SPDX-License-Identifier: Apache-2.0
#include "octavo/deepcompile/tensor_offload.h"

#include <ATen/ATen.h>

#include "octavo/deepcompile/host_copy.h"
#include "octavo/device/pinned.h"
#include "octavo/kernels/error.h"

namespace octavo::dc {

namespace {

at::Tensor host_memory(const at::Tensor& values, bool is_pinned) {
  if (!is_pinned) return at::empty(values.sizes(), values.options().device(at::kCPU));
  return pinned_zeros(values.sizes(), values.scalar_type(), /*alignment_bytes=*/0, values.device().type());
}

}  // namespace

TensorOffload::Entry& TensorOffload::at(long id) {
  const auto found = entries_.find(id);
  if (found != entries_.end()) return found->second;
  fail(ErrorCode::invalid_argument, "deepcompile.tensor_offload", "value ", id, " was not sent to the host, which has ",
       entries_.size(), " others: offload it first");
}

at::Tensor TensorOffload::offload(const at::Tensor& values, long id, bool is_pinned) {
  Entry& entry = entries_.try_emplace(id, Entry{values.device()}).first->second;
  const at::Tensor& before = entry.on_host;
  const bool fits = before.defined() && before.sizes() == values.sizes() && before.dtype() == values.dtype() &&
                    entry.device == values.device();
  if (!fits) entry = {values.device(), host_memory(values, is_pinned)};
  const auto is_current = offload_streams_.hand_over(entry.device).take();
  if (entry.reload_done) entry.reload_done->block(current_stream_of(entry.device));  // it reads that memory
  entry.offload_done = copy_on_stream(entry.on_host, values, values);
  return entry.on_host;
}

at::Tensor TensorOffload::wait_offload(long id) {
  const Entry& entry = at(id);
  entry.offload_done->block(current_stream_of(entry.device));
  return entry.on_host;
}

at::Tensor TensorOffload::reload(long id) {
  Entry& entry = at(id);
  entry.reloaded = at::empty(entry.on_host.sizes(), entry.on_host.options().device(entry.device).pinned_memory(false));
  const auto is_current = reload_streams_.hand_over(entry.device).take();
  entry.offload_done->block(current_stream_of(entry.device));
  entry.reload_done = copy_on_stream(entry.reloaded, entry.on_host, entry.reloaded);
  return entry.reloaded;
}

at::Tensor TensorOffload::wait_reload(long id) {
  const Entry& entry = at(id);
  if (!entry.reloaded.defined()) {
    fail(ErrorCode::invalid_argument, "deepcompile.tensor_offload", "value ", id, " is on the host: reload it first");
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
