// SPDX-License-Identifier: Apache-2.0
#include "octavo/comm/state/versioned.h"

#include <ATen/ATen.h>

#include <utility>

#include "octavo/kernels/error.h"

namespace octavo {

namespace {

void require_size(at::ScalarType dtype, std::uint64_t element_bytes) {
  if (c10::elementSize(dtype) == element_bytes) return;
  fail(ErrorCode::internal, "comm.versioned", toString(dtype), " read as elements of ", element_bytes, " bytes");
}

}  // namespace

const void* Versioned::now_bytes(c10::Device device, std::uint64_t element_bytes) {
  require_size(dtype_, element_bytes);
  if (now_.defined() && now_.device() != device) now_ = memory_->copy(now_, device);  // it was restored from a file
  return now_.defined() ? now_.const_data_ptr() : nullptr;
}

void* Versioned::next_bytes(std::uint64_t count, c10::Device device, std::uint64_t element_bytes) {
  require_size(dtype_, element_bytes);
  const auto size = static_cast<std::int64_t>(count);
  if (!next_.defined() || next_.numel() != size || next_.device() != device) {
    next_ = memory_->empty(count, dtype_, device);
    memory_->prefetch(next_);
  }
  written_ = true;
  return next_.mutable_data_ptr();
}

void Versioned::commit() {
  if (written_) std::swap(now_, next_);
  written_ = false;
}

void Versioned::roll_back() { written_ = false; }

void Versioned::clear() { *this = Versioned(dtype_, memory_); }

void Versioned::restore(at::Tensor values) {
  now_ = std::move(values);
  written_ = false;
}

void Versioned::make_zeros_if_absent(std::uint64_t count, c10::Device device) {
  if (!now_.defined()) now_ = memory_->empty(count, dtype_, device).zero_();
}

void Versioned::prefetch() const {
  for (const at::Tensor& tensor : {now_, next_}) memory_->prefetch(tensor);
}

void Versioned::evict() const {
  for (const at::Tensor& tensor : {now_, next_}) memory_->evict(tensor);
}

}  // namespace octavo
