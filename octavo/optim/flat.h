// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>

/// Tensors as the flat float32 memory that fused steps work on.
namespace octavo {

inline constexpr std::int64_t kGrainElements = 1 << 14;  // the fewest that a thread takes

/// Throws Error invalid_argument, in the name of `where`, unless `state` is float32 of the parameter's shape and
/// device, and the parameter of a floating dtype.
void require_state(const at::Tensor& state, const at::Tensor& parameter, const char* where, const char* what);
/// Throws the same unless a list has as many tensors as there are parameters.
void require_length(std::size_t got, std::size_t parameters, const char* where, const char* what);
/// Throws the same unless `tensor` is of a floating dtype and of the parameter's shape and device, and the parameter of
/// a floating dtype.
void require_like(const at::Tensor& tensor, const at::Tensor& parameter, const char* where, const char* what);

/// Returns a tensor in the memory order that all flat tensors of a step share: the parameter's where that is dense,
/// otherwise row-major.
at::Tensor order_of(const at::Tensor& parameter);

/// A tensor as flat float32 memory in the order of `like`. Any other tensor is copied, and write_back() copies it back.
class Flat {
 public:
  Flat(const at::Tensor& tensor, const at::Tensor& like);
  float* data() { return values_.mutable_data_ptr<float>(); }
  void write_back();

 private:
  at::Tensor tensor_, values_;
};

}  // namespace octavo
