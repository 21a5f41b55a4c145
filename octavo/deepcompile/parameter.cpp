// SPDX-License-Identifier: Apache-2.0
#include "octavo/deepcompile/parameter.h"

#include <ATen/ATen.h>

#include <utility>

#include "octavo/deepcompile/host_copy.h"
#include "octavo/deepcompile/text.h"
#include "octavo/device/pinned.h"
#include "octavo/device/side_streams.h"
#include "octavo/kernels/error.h"

namespace octavo::dc {

namespace {

constexpr const char* kOfParameter = "deepcompile.parameter";

/// Of a tensor that was made where torch counts no changes: 0.
std::int64_t version_of(const at::Tensor& values) {
  return values.is_inference() ? 0 : static_cast<std::int64_t>(values._version());
}

/// Of each thread that moves parameters: a device's streams live as long as the process.
SideStreams& offload_streams() {
  thread_local SideStreams streams;
  return streams;
}
SideStreams& reload_streams() {
  thread_local SideStreams streams;
  return streams;
}

}  // namespace

DSParam::DSParam(long id, std::vector<std::int64_t> ds_shape, at::Tensor ds_tensor, at::Tensor grad_buffer,
                 bool partitioned, std::int64_t offset, bool persistent)
    : id_(id),
      shape_(std::move(ds_shape)),
      dtype_(ds_tensor.scalar_type()),
      device_(ds_tensor.device()),
      on_device_(std::move(ds_tensor)),
      partitioned_(partitioned),
      offset_(offset),
      persistent_(persistent) {
  const auto whole = static_cast<std::int64_t>(productDim(shape_)), own = on_device_.numel();
  if (partitioned_ ? own > whole : own != whole) {
    fail(ErrorCode::invalid_argument, kOfParameter, "expected ", partitioned_ ? "at most " : "", whole,
         " elements of parameter ", id_, ", whose shape is [", join_as_str(shape_, ", "), "], got ", own);
  }
  if (offset_ < 0 || offset_ > whole) {
    fail(ErrorCode::invalid_argument, kOfParameter, "expected an offset of parameter ", id_, " from 0 to ", whole,
         ", got ", offset_);
  }
  setGradBuffer(std::move(grad_buffer));
}

void DSParam::setGradBuffer(at::Tensor buffer) {
  require_buffer(buffer);
  grad_buffer_ = std::move(buffer);
}

void DSParam::require_buffer(const at::Tensor& buffer) const {
  if (!buffer.defined()) return;
  const auto whole = static_cast<std::int64_t>(productDim(shape_));
  if (buffer.device() == device_ && at::isFloatingType(buffer.scalar_type()) && buffer.numel() <= whole) return;
  fail(ErrorCode::invalid_argument, kOfParameter, "expected the gradient buffer of parameter ", id_, " as at most ",
       whole, " floats on ", device_.str(), ", got ", at::toString(buffer.scalar_type()), buffer.sizes(), " on ",
       buffer.device().str());
}

at::Tensor DSParam::getDSTensor() const {
  if (on_device_.defined()) {
    if (reloaded_) reloaded_->block(current_stream_of(device_));
    return on_device_;
  }
  offloaded_->synchronize();
  return on_host_;
}

std::int64_t DSParam::getVersion() const {
  return moved_changes_ + version_of(on_device_.defined() ? on_device_ : on_host_);
}

void DSParam::offload() {
  if (device_.is_cpu() || !on_device_.defined()) return;
  if (!on_host_.defined()) on_host_ = pinned_zeros(on_device_.sizes(), dtype_, /*alignment_bytes=*/0, device_.type());
  const at::Tensor values = getDSTensor();  // after a reload that is under way
  const auto is_current = offload_streams().hand_over(device_).take();
  offloaded_ = copy_on_stream(on_host_, values, values);
  moved_changes_ += version_of(on_device_) - version_of(on_host_);
  on_device_.reset();
}

void DSParam::reload() {
  if (on_device_.defined()) return;
  const at::Tensor values = at::empty(on_host_.sizes(), on_host_.options().device(device_).pinned_memory(false));
  const auto is_current = reload_streams().hand_over(device_).take();
  offloaded_->block(current_stream_of(device_));
  reloaded_ = copy_on_stream(values, on_host_, values);
  moved_changes_ += version_of(on_host_) - version_of(values);
  on_device_ = values;
}

}  // namespace octavo::dc
