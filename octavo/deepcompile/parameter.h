// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "octavo/deepcompile/hosted_tensor.h"
#include "octavo/export.h"

namespace octavo::dc {

/// Returns the elements of parameter `id`, which has this shape. Throws Error invalid_argument for a negative size, and
/// for so many elements that their bytes cannot be counted.
OCTAVO_API std::int64_t element_count(long id, const std::vector<std::int64_t>& shape);
/// Throws Error invalid_argument where the values of parameter `id` are an undefined tensor.
OCTAVO_API const at::Tensor& require_defined(long id, const at::Tensor& values);

/// A parameter as a rank keeps it under ZeRO: its shard (stage 3) or the whole of it (stages 1 and 2), and the buffer
/// that its reduced gradient goes to. Its values may be sent to the host and brought back. Not thread-safe.
///
/// Moving is asynchronous, on streams of its own, and the tensor stays the same (HostedTensor). On the CPU values stay
/// where they are, and so do those that are a part of larger memory.
class OCTAVO_API DSParam {
 public:
  /// `id` is unique in its registry. `ds_shape` is the shape of the whole parameter. `ds_tensor` has this rank's
  /// values, and the parameter keeps its memory; where `partitioned`, it is a shard, flat or not, whose padding counts.
  /// `grad_buffer`, in row-major order, may be undefined and be bound later. `offset` is where this rank's part begins
  /// in the whole, in elements (stages 1 and 2); the buffer ends in the whole. `persistent`: the parameter stays
  /// gathered from its first use to the end of the step (stage 3). Throws Error invalid_argument where these contradict
  /// each other, and what element_count() and require_defined() throw.
  DSParam(long id, std::vector<std::int64_t> ds_shape, at::Tensor ds_tensor, at::Tensor grad_buffer, bool partitioned,
          std::int64_t offset, bool persistent);

  long getId() const { return id_; }
  std::vector<std::int64_t> getShape() const { return shape_; }
  at::ScalarType getDtype() const { return dtype_; }
  /// The device on which its values are used.
  c10::Device getDevice() const { return device_; }

  /// Returns its values where they are now. On the device they are ready for what its current stream gets from now on.
  /// On the host the thread waits for their copy.
  at::Tensor getDSTensor() const;
  /// A number that differs after each change of the values that torch knows of, and stays the same when they are moved.
  std::int64_t getVersion() const { return values_.version(); }
  at::Tensor getGradBuffer() const { return grad_buffer_; }
  void setGradBuffer(at::Tensor buffer);
  bool isPartitioned() const { return partitioned_; }
  std::int64_t getOffset() const { return offset_; }
  bool isPersistent() const { return persistent_; }
  void setPersistent(bool persistent) { persistent_ = persistent; }

  /// Moves the values to page-locked memory of the host, once the device's current stream has done the work that it
  /// has, and frees the device's memory. Does nothing where they are there already; copies nothing where the host has
  /// them.
  void offload();
  /// Moves the values back, after an offload that is under way.
  void reload();
  bool isOffloaded() const { return values_.is_away(); }
  /// The bytes of the device's memory that an offload frees; 0 where the values stay.
  std::int64_t bytes() const { return values_.bytes(); }
  /// Waits, on the calling thread, for an offload that is under way: the device's memory can be used again.
  void waitOffload() const { values_.wait_for_offload(); }
  /// Must be called where the values may change in ways that torch does not count.
  void touch() { values_.touch(); }

 private:
  void require_buffer(const at::Tensor& buffer) const;

  long id_;
  std::vector<std::int64_t> shape_;
  at::ScalarType dtype_;
  c10::Device device_;
  HostedTensor values_;
  at::Tensor grad_buffer_;
  bool partitioned_;
  std::int64_t offset_;
  bool persistent_;
};

}  // namespace octavo::dc
