// SPDX-License-Identifier: Apache-2.0
#include "octavo/deepcompile/parameter.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "octavo/deepcompile/text.h"
#include "octavo/device/side_streams.h"
#include "octavo/kernels/error.h"

namespace octavo::dc {

namespace {

constexpr const char* kParameterWhere = "deepcompile.parameter";

/// The streams of each thread that moves parameters: a device's streams exist as long as the process.
SideStreams& offload_streams() {
  thread_local SideStreams streams;
  return streams;
}
SideStreams& reload_streams() {
  thread_local SideStreams streams;
  return streams;
}

}  // namespace

std::int64_t element_count(long id, const std::vector<std::int64_t>& shape) {
  constexpr std::int64_t kMost =
      std::numeric_limits<std::int64_t>::max() / static_cast<std::int64_t>(sizeof(c10::complex<double>));
  if (std::ranges::any_of(shape, [](std::int64_t size) { return size < 0; })) {
    fail(ErrorCode::invalid_argument, kParameterWhere, "expected sizes of at least 0 of parameter ", id, ", got [",
         join_as_str(shape, ", "), "]");
  }
  if (std::ranges::find(shape, 0) != shape.end()) return 0;
  std::int64_t count = 1;
  for (const std::int64_t size : shape) {
    if (size > kMost / count) {
      fail(ErrorCode::invalid_argument, kParameterWhere, "expected at most ", kMost, " elements of parameter ", id,
           ", whose shape is [", join_as_str(shape, ", "), "]");
    }
    count *= size;
  }
  return count;
}

const at::Tensor& require_defined(long id, const at::Tensor& values) {
  if (values.defined()) return values;
  fail(ErrorCode::invalid_argument, kParameterWhere, "expected a tensor with the values of parameter ", id,
       ", got an undefined one");
}

DSParam::DSParam(long id, std::vector<std::int64_t> ds_shape, at::Tensor ds_tensor, at::Tensor grad_buffer,
                 bool partitioned, std::int64_t offset, bool persistent)
    : id_(id),
      shape_(std::move(ds_shape)),
      dtype_(require_defined(id, ds_tensor).scalar_type()),
      device_(ds_tensor.device()),
      values_(std::move(ds_tensor)),
      partitioned_(partitioned),
      offset_(offset),
      persistent_(persistent) {
  if (!at::isFloatingType(dtype_)) {
    fail(ErrorCode::invalid_argument, kParameterWhere, "expected parameter ", id_, " of a real floating dtype, got ",
         toString(dtype_), ": its values are sent as such");
  }
  const std::int64_t whole = element_count(id_, shape_), own = values_.values().numel();
  if (partitioned_ ? own > whole : own != whole) {
    fail(ErrorCode::invalid_argument, kParameterWhere, "expected ", partitioned_ ? "at most " : "", whole,
         " elements of parameter ", id_, ", whose shape is [", join_as_str(shape_, ", "), "], got ", own);
  }
  if (offset_ < 0 || offset_ > whole) {
    fail(ErrorCode::invalid_argument, kParameterWhere, "expected an offset of parameter ", id_, " from 0 to ", whole,
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
  const std::int64_t room = element_count(id_, shape_) - offset_;
  if (buffer.device() == device_ && at::isFloatingType(buffer.scalar_type()) && buffer.numel() <= room &&
      buffer.is_contiguous()) {
    return;
  }
  fail(ErrorCode::invalid_argument, kParameterWhere, "expected the gradient buffer of parameter ", id_, " as at most ",
       room, " floats in row-major order on ", device_.str(), ", got ", at::toString(buffer.scalar_type()),
       buffer.sizes(), " with strides ", buffer.strides(), " on ", buffer.device().str());
}

at::Tensor DSParam::getDSTensor() const {
  if (values_.is_away()) return values_.on_host();
  values_.wait_for_reload();
  return values_.values();
}

void DSParam::offload() { values_.offload(offload_streams()); }

void DSParam::reload() { values_.reload(reload_streams()); }

}  // namespace octavo::dc
