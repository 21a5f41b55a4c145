// SPDX-License-Identifier: Apache-2.0
#include "octavo/optim/flat.h"

#include <ATen/ATen.h>

#include "octavo/kernels/error.h"

namespace octavo {

namespace {

void require_floating(const at::Tensor& parameter, const char* where) {
  if (at::isFloatingType(parameter.scalar_type())) return;
  fail(ErrorCode::invalid_argument, where, "expected a parameter of a floating dtype, got ",
       toString(parameter.scalar_type()));
}

}  // namespace

void require_state(const at::Tensor& state, const at::Tensor& parameter, const char* where, const char* what) {
  require_floating(parameter, where);
  if (state.scalar_type() == at::kFloat && state.sizes() == parameter.sizes() && state.device() == parameter.device()) {
    return;
  }
  fail(ErrorCode::invalid_argument, where, "expected ", what, " as float32", parameter.sizes(), " on ",
       parameter.device().str(), ", got ", toString(state.scalar_type()), state.sizes(), " on ", state.device().str());
}

void require_length(std::size_t got, std::size_t parameters, const char* where, const char* what) {
  if (got == parameters) return;
  fail(ErrorCode::invalid_argument, where, "expected as many ", what, " as parameters, ", parameters, ", got ", got);
}

void require_like(const at::Tensor& tensor, const at::Tensor& parameter, const char* where, const char* what) {
  require_floating(parameter, where);
  if (at::isFloatingType(tensor.scalar_type()) && tensor.sizes() == parameter.sizes() &&
      tensor.device() == parameter.device()) {
    return;
  }
  fail(ErrorCode::invalid_argument, where, "expected ", what, " of a floating dtype, ", parameter.sizes(), " on ",
       parameter.device().str(), ", got ", toString(tensor.scalar_type()), tensor.sizes(), " on ",
       tensor.device().str());
}

at::Tensor order_of(const at::Tensor& parameter) {
  return parameter.is_non_overlapping_and_dense() ? parameter : at::empty(parameter.sizes(), parameter.options());
}

Flat::Flat(const at::Tensor& tensor, const at::Tensor& like) : tensor_(tensor), values_(tensor) {
  const bool is_flat =
      tensor.scalar_type() == at::kFloat && tensor.strides() == like.strides() && tensor.is_non_overlapping_and_dense();
  if (!is_flat) values_ = at::empty_like(like, at::TensorOptions().dtype(at::kFloat)).copy_(tensor);
}

void Flat::write_back() {
  if (!values_.is_same(tensor_)) tensor_.copy_(values_);
}

}  // namespace octavo
