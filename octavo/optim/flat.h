// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <unordered_map>

#include "octavo/device/dispatch.h"

/// Tensors as the flat float32 memory that fused steps work on.
namespace octavo {

inline constexpr std::int64_t kGrainElements = 1 << 14;  // the fewest that a thread takes

/// Throws Error invalid_argument, in the name of `where`, unless `state` is float32 of the parameter's shape and
/// device, and the parameter of a floating dtype, and a step can write to both (require_writable).
void require_state(const at::Tensor& state, const at::Tensor& parameter, const char* where, const char* what);
/// Throws the same unless a list has as many tensors as there are parameters.
void require_length(std::size_t got, std::size_t parameters, const char* where, const char* what);
/// Throws the same unless `tensor` is strided, of a floating dtype and of the parameter's shape and device, and the
/// parameter is of a floating dtype and can be written to.
void require_like(const at::Tensor& tensor, const at::Tensor& parameter, const char* where, const char* what);
/// Whether a step can write to each element of `tensor` by itself: it is strided, and has memory for each, which
/// tensors of expand() do not have.
bool is_writable(const at::Tensor& tensor);
/// Throws the same unless is_writable().
void require_writable(const at::Tensor& tensor, const char* where, const char* what);
/// Throws the same unless `step` is at least 1: the bias of a step before the first cannot be divided out.
void require_step(std::int64_t step, const char* where, const char* what);
/// Throws the same unless `value` is finite. A schedule may make a learning rate a little less than 0.
void require_finite(double value, const char* where, const char* what);
/// Throws the same unless `value` is finite and at least 0.
void require_not_negative(double value, const char* where, const char* what);
/// Throws the same unless all are finite, the betas at least 0 and below 1, and the weight decay at least 0.
void require_rates(double lr, double beta1, double beta2, double weight_decay, const char* where);

/// Returns a tensor's description for messages; it may be undefined.
std::string described(const at::Tensor& tensor);

/// Returns a tensor of the parameter's sizes and in row-major order, without memory.
at::Tensor row_major(const at::Tensor& parameter);
/// Returns a tensor in the memory order that all flat tensors of a step share: the parameter's where that is dense,
/// otherwise row-major. It may have no memory.
at::Tensor order_of(const at::Tensor& parameter);
/// Whether kernels may walk a tensor as flat memory in the order of another one of its shape.
bool has_order_of(const at::Tensor& tensor, const at::Tensor& order);

/// Memory for copies of one parameter's tensors at a time, on any devices. A step reserves it before it changes any
/// parameter: where it finds no memory, it has changed nothing. Copies of all parameters at once could take more memory
/// than their states.
class CopyRoom {
 public:
  /// Makes room for one parameter's copies of `bytes` bytes together. Throws what an allocation throws.
  void reserve(std::int64_t bytes, c10::Device device);
  /// Forgets the copies that were made so far.
  void clear() { used_ = 0; }
  /// Returns a copy of a tensor in the order of another one.
  at::Tensor copy_of(const at::Tensor& tensor, const at::Tensor& order, at::ScalarType dtype);

  /// Returns the bytes that a copy takes.
  static std::int64_t size_bytes(std::int64_t elements, at::ScalarType dtype);

 private:
  std::unordered_map<c10::Device, at::Tensor> bytes_;
  std::int64_t used_ = 0;
};

/// A tensor as flat float32 memory in the order of `like`. Any other tensor is copied, to `room` where there is one.
/// write_back() copies it back, also to a leaf that requires a gradient.
class Flat {
 public:
  Flat(const at::Tensor& tensor, const at::Tensor& like, CopyRoom* room = nullptr);
  float* data() { return values_.mutable_data_ptr<float>(); }
  const at::Tensor& values() const { return values_; }
  void write_back();

 private:
  at::Tensor tensor_, values_;
};

/// Reserves what the Flats of any one parameter need. Each list has a tensor for each parameter, or is empty.
void reserve_for_flats(CopyRoom& room, at::TensorList parameters, std::initializer_list<at::TensorList> lists);

/// Calls `step(i, flat_of)` for each parameter, where `flat_of(list)` returns the Flat of the list's tensor i in the
/// parameter's order. Memory for the Flats is reserved before the first call; afterwards nothing is allocated for them.
/// `lists` are those that flat_of() is called with, each at most once for a parameter.
template <class Step>
void for_each_flat(at::TensorList parameters, std::initializer_list<at::TensorList> lists, Step step) {
  CopyRoom room;
  reserve_for_flats(room, parameters, lists);
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    room.clear();
    const at::Tensor order = order_of(parameters[i]);
    step(i, [&](at::TensorList list) { return Flat(list[i], order, &room); });
  }
}

/// Calls `launch(scope, first, size)` for parts of `count` elements, several at a time where there are more threads.
template <class Launch>
void for_elements(c10::Device device, std::uint64_t count, Launch launch) {
  const LaunchScope scope(device);
  for_parts(device, static_cast<std::int64_t>(count), kGrainElements, [&](std::int64_t first, std::int64_t last) {
    launch(scope, static_cast<std::uint64_t>(first), static_cast<std::uint64_t>(last - first));
  });
}

/// The same for the elements of a tensor, on its device.
template <class Launch>
void for_elements(const at::Tensor& tensor, Launch launch) {
  for_elements(tensor.device(), static_cast<std::uint64_t>(tensor.numel()), launch);
}

}  // namespace octavo
