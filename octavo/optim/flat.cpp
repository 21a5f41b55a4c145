// SPDX-License-Identifier: Apache-2.0
#include "octavo/optim/flat.h"

#include <ATen/ATen.h>
#include <ATen/MemoryOverlap.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "octavo/device/own_values.h"
#include "octavo/kernels/error.h"
#include "octavo/kernels/round_up.h"

namespace octavo {

namespace {

bool is_flat(const at::Tensor& tensor, const at::Tensor& order) {
  return tensor.scalar_type() == at::kFloat && has_order_of(tensor, order);
}

bool is_strided(const at::Tensor& tensor) { return tensor.defined() && tensor.layout() == at::kStrided; }

void require_parameter(const at::Tensor& parameter, const char* where) {
  require_writable(parameter, where, "a parameter");
  if (at::isFloatingType(parameter.scalar_type())) return;
  fail(ErrorCode::invalid_argument, where, "expected a parameter of a floating dtype, got ",
       toString(parameter.scalar_type()));
}

}  // namespace

std::string described(const at::Tensor& tensor) {
  if (!tensor.defined()) return "an undefined tensor";
  const std::string strided = c10::str(toString(tensor.scalar_type()), tensor.sizes(), " on ", tensor.device().str());
  return is_strided(tensor) ? strided : c10::str(tensor.layout(), " ", strided);
}

bool is_writable(const at::Tensor& tensor) {
  return is_strided(tensor) && !tensor._is_zerotensor() && at::has_internal_overlap(tensor) != at::MemOverlap::Yes;
}

void require_writable(const at::Tensor& tensor, const char* where, const char* what) {
  if (is_writable(tensor)) return;
  if (!is_strided(tensor)) {
    fail(ErrorCode::invalid_argument, where, "expected ", what, " as a strided tensor, got ", described(tensor));
  }
  if (tensor._is_zerotensor()) {
    fail(ErrorCode::invalid_argument, where, "expected ", what, " with memory, got zeros without any: call clone()");
  }
  fail(ErrorCode::invalid_argument, where, "expected ", what, " with memory for each element, got strides ",
       tensor.strides(), " of ", tensor.sizes(), ", as expand() makes them: call contiguous()");
}

void require_step(std::int64_t step, const char* where, const char* what) {
  if (step < 1) fail(ErrorCode::invalid_argument, where, "expected ", what, " counted from 1, got ", step);
}

void require_finite(double value, const char* where, const char* what) {
  if (!std::isfinite(value)) fail(ErrorCode::invalid_argument, where, "expected a finite ", what, ", got ", value);
}

void require_not_negative(double value, const char* where, const char* what) {
  if (std::isfinite(value) && value >= 0) return;
  fail(ErrorCode::invalid_argument, where, "expected a finite ", what, " of at least 0, got ", value);
}

void require_rates(double lr, double beta1, double beta2, double weight_decay, const char* where) {
  require_finite(lr, where, "lr");
  for (const auto& [name, beta] : {std::pair("beta1", beta1), std::pair("beta2", beta2)}) {
    if (beta >= 0 && beta < 1) continue;
    fail(ErrorCode::invalid_argument, where, "expected a ", name, " of at least 0 and below 1, got ", beta);
  }
  require_not_negative(weight_decay, where, "weight_decay");
}

void require_state(const at::Tensor& state, const at::Tensor& parameter, const char* where, const char* what) {
  require_parameter(parameter, where);
  require_writable(state, where, what);
  if (state.scalar_type() == at::kFloat && state.sizes() == parameter.sizes() && state.device() == parameter.device()) {
    return;
  }
  fail(ErrorCode::invalid_argument, where, "expected ", what, " as float32", parameter.sizes(), " on ",
       parameter.device().str(), ", got ", described(state));
}

void require_length(std::size_t got, std::size_t parameters, const char* where, const char* what) {
  if (got == parameters) return;
  fail(ErrorCode::invalid_argument, where, "expected as many ", what, " as parameters, ", parameters, ", got ", got);
}

void require_like(const at::Tensor& tensor, const at::Tensor& parameter, const char* where, const char* what) {
  require_parameter(parameter, where);
  if (is_strided(tensor) && at::isFloatingType(tensor.scalar_type()) && tensor.sizes() == parameter.sizes() &&
      tensor.device() == parameter.device()) {
    return;
  }
  fail(ErrorCode::invalid_argument, where, "expected ", what, ", strided, of a floating dtype, ", parameter.sizes(),
       " on ", parameter.device().str(), ", got ", described(tensor));
}

at::Tensor row_major(const at::Tensor& parameter) {
  return at::empty(parameter.sizes(), parameter.options().device(at::kMeta));
}

at::Tensor order_of(const at::Tensor& parameter) {
  return parameter.is_non_overlapping_and_dense() ? parameter : row_major(parameter);
}

bool has_order_of(const at::Tensor& tensor, const at::Tensor& order) {
  return tensor.is_non_overlapping_and_dense() && tensor.strides() == order.strides() && has_own_values(tensor);
}

std::int64_t CopyRoom::size_bytes(std::int64_t elements, at::ScalarType dtype) {
  constexpr std::int64_t kAlignment = 64;
  return round_up(elements * static_cast<std::int64_t>(c10::elementSize(dtype)), kAlignment);
}

void CopyRoom::reserve(std::int64_t bytes, c10::Device device) {
  at::Tensor& room = bytes_[device];
  if (room.defined() && room.numel() >= bytes) return;
  room = at::Tensor();
  room = at::empty({bytes}, at::dtype(at::kByte).device(device));
}

at::Tensor CopyRoom::copy_of(const at::Tensor& tensor, const at::Tensor& order, at::ScalarType dtype) {
  const std::int64_t bytes = tensor.numel() * static_cast<std::int64_t>(c10::elementSize(dtype));
  const at::Tensor room = bytes_.at(tensor.device()).narrow(0, used_, bytes).view(dtype);
  used_ += size_bytes(tensor.numel(), dtype);
  return room.as_strided(order.sizes(), order.strides()).copy_(tensor);
}

Flat::Flat(const at::Tensor& tensor, const at::Tensor& like, CopyRoom* room) : tensor_(tensor), values_(tensor) {
  if (is_flat(tensor, like)) return;
  const c10::NoGradGuard not_differentiated;
  values_ = room ? room->copy_of(tensor, like, at::kFloat)
                 : at::empty_strided(like.sizes(), like.strides(), tensor.options().dtype(at::kFloat)).copy_(tensor);
}

void Flat::write_back() {
  const c10::NoGradGuard not_differentiated;
  if (!values_.is_same(tensor_)) tensor_.copy_(values_);
}

void reserve_for_flats(CopyRoom& room, at::TensorList parameters, std::initializer_list<at::TensorList> lists) {
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const at::Tensor order = order_of(parameters[i]);
    const auto copied =
        std::ranges::count_if(lists, [&](at::TensorList list) { return !list.empty() && !is_flat(list[i], order); });
    room.reserve(copied * CopyRoom::size_bytes(order.numel(), at::kFloat), parameters[i].device());
  }
}

}  // namespace octavo
