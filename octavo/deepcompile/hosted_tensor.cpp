// SPDX-License-Identifier: Apache-2.0
#include "octavo/deepcompile/hosted_tensor.h"

#include <ATen/ATen.h>

#include <utility>

#include "octavo/deepcompile/memory_access.h"
#include "octavo/device/pinned.h"
#include "octavo/device/stream_event.h"

namespace octavo::dc {

namespace {

constexpr const char* kAwayMessage =
    "[deepcompile.hosted_tensor] these values wait on the host until the optimizer's step: ask the engine or the "
    "optimizer for its state_dict(), or call engine.bring_back() before they are read";

/// Returns torch's count of changes. It is 0 for a tensor that was made where torch counts none.
std::int64_t changes_of(const at::Tensor& values) {
  return !values.defined() || values.is_inference() ? 0 : static_cast<std::int64_t>(values._version());
}

bool is_alone_in_its_memory(const at::Tensor& values) {
  return values.has_storage() && values.nbytes() > 0 && values.storage().nbytes() == values.nbytes();
}

}  // namespace

HostedTensor::HostedTensor(at::Tensor values)
    : values_(std::move(values)), moves_(!values_.is_cpu() && is_alone_in_its_memory(values_)) {}

std::int64_t HostedTensor::version() const { return changes_of(values_) + changes_of(on_host_) - changes_when_made_; }

/// Returns the bytes as a tensor of its own, whose changes torch counts apart.
at::Tensor HostedTensor::as_bytes(const at::Tensor& tensor) const {
  const auto size = static_cast<std::int64_t>(tensor.nbytes());
  return at::empty({0}, tensor.options().dtype(at::kByte)).set_(tensor.storage(), 0, {size}, {1});
}

void HostedTensor::offload(SideStreams& streams) {
  if (!moves_ || is_away_) return;
  const c10::Device device = values_.device();
  if (!on_host_.defined()) {
    const at::Tensor memory = pinned_zeros({bytes()}, at::kByte, /*alignment_bytes=*/0, device.type());
    on_host_ = at::empty({0}, values_.options().device(at::kCPU))
                   .set_(memory.storage(), 0, values_.sizes(), values_.strides());
    changes_when_made_ = changes_of(on_host_);
  }
  wait_for_reload();
  if (!has_copy_ || copied_version_ != changes_of(values_)) {
    const auto is_current = streams.hand_over(device).take();
    const at::Tensor from = as_bytes(values_);
    offloaded_ = copy_on_stream(as_bytes(on_host_), from, from);
    has_copy_ = true;
    copied_version_ = changes_of(values_);
  }
  c10::StorageImpl& storage = *values_.storage().unsafeGetStorageImpl();
  storage.set_data_ptr_noswap(c10::DataPtr(nullptr, device));
  storage.set_nbytes(0);
  forbid_access(values_, kAwayMessage);
  is_away_ = true;
}

void HostedTensor::reload(SideStreams& streams) {
  if (!is_away_) return;
  const c10::Device device = values_.device();
  const std::int64_t size = bytes();
  const at::Tensor fresh = at::empty({size}, at::dtype(at::kByte).device(device));
  {
    const auto is_current = streams.hand_over(device).take();
    offloaded_->block(current_stream_of(device));
    reloaded_ = copy_on_stream(fresh, as_bytes(on_host_), fresh);
  }
  allow_access(values_);
  c10::StorageImpl& storage = *values_.storage().unsafeGetStorageImpl();
  storage.set_data_ptr_noswap(fresh.storage().unsafeGetStorageImpl()->set_data_ptr(c10::DataPtr(nullptr, device)));
  storage.set_nbytes(static_cast<std::size_t>(size));
  is_away_ = false;
}

void HostedTensor::wait_for_reload() const {
  if (reloaded_) reloaded_->block(current_stream_of(values_.device()));
}

void HostedTensor::wait_for_offload() const {
  if (is_away_) offloaded_->synchronize();
}

const at::Tensor& HostedTensor::on_host() const {
  wait_for_offload();
  return on_host_;
}

}  // namespace octavo::dc
