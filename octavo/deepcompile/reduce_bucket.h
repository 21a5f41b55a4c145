// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "octavo/device/stream_event.h"
#include "octavo/export.h"

/// Where gradients wait to be reduced together.
namespace octavo::dc {

/// A gradient in a bucket. It is kept alive until it has been copied there.
class ReduceTask {
 public:
  /// `send_buf` is its slice of the bucket, or the gradient itself, flat.
  ReduceTask(long ds_id, at::Tensor grad, at::Tensor send_buf)
      : ds_id_(ds_id), grad_(std::move(grad)), send_buf_(std::move(send_buf)) {}
  long getDSId() const { return ds_id_; }
  at::Tensor getSendBuf() const { return send_buf_; }

 private:
  long ds_id_;
  at::Tensor grad_, send_buf_;
};

/// Memory for gradients of one dtype, from which slices are cut in turn. Not thread-safe.
class OCTAVO_API ReduceBucket {
 public:
  /// `size` is in elements. Memory that is never written costs nothing on the CPU. Throws Error out_of_memory.
  ReduceBucket(std::int64_t size, at::ScalarType scalar_type, c10::Device device = c10::DeviceType::CPU);

  std::int64_t getSize() const { return buffer_.numel(); }
  /// The number of elements in use, from the beginning on.
  std::int64_t getOffset() const { return offset_; }
  at::Tensor getBuffer() const { return buffer_; }
  at::ScalarType getScalarType() const { return buffer_.scalar_type(); }

  /// Makes room for `size` elements in all. Throws Error invalid_argument where that needs new memory while slices of
  /// the old memory are in use, Error out_of_memory where there is none.
  void reserve(std::int64_t size);
  /// Cuts off the next `numel` elements. Throws Error invalid_argument where they do not fit.
  at::Tensor allocate(std::int64_t numel);
  /// Whether `numel` more elements would exceed the size, so that the bucket must be sent first. Of an empty bucket
  /// there is nothing to send: reserve() makes room.
  bool shouldFlush(std::int64_t numel) const { return numel > getSize() - offset_; }
  /// Ends the use of the slices.
  void reset() { offset_ = 0; }

 private:
  at::Tensor buffer_;
  std::int64_t offset_ = 0;
};

/// A bucket for each dtype and, where `enable_double_buffer`, a second one, which fills while the first is sent. They
/// are made at their first use. Not thread-safe.
class OCTAVO_API DoubleBufferedReduceBucket {
 public:
  /// `initial_bucket_size` is in elements.
  DoubleBufferedReduceBucket(std::int64_t initial_bucket_size, bool enable_double_buffer,
                             c10::Device device = c10::DeviceType::CPU)
      : initial_size_(initial_bucket_size), is_double_(enable_double_buffer), device_(device) {}

  /// Whether another bucket fills while one is sent.
  bool isDouble() const { return is_double_; }
  /// The size with which buckets are made, in elements. One that has grown for a large gradient is larger.
  std::int64_t getInitialSize() const { return initial_size_; }
  /// The bucket that fills.
  std::shared_ptr<ReduceBucket> getBuffer(at::ScalarType scalar_type);
  /// Returns the mark of the end of the work on that bucket's memory that was enqueued when it was last sent. What
  /// writes to the bucket must wait for it.
  std::shared_ptr<StreamEvent> getEvent(at::ScalarType scalar_type);
  /// Must be called after the bucket's communication was enqueued on `rs_stream`; copies on `copy_stream` have filled
  /// the bucket. It is then empty again, and the other one fills.
  void swap(at::ScalarType scalar_type, c10::Stream rs_stream, c10::Stream copy_stream);
  /// Drops all buckets, and the gradients in them; the work that was enqueued on them goes on.
  void clear() {
    pairs_.clear();
    tasks_.clear();
  }

  /// The tasks in the buckets that fill, in the order of their slices.
  std::unordered_map<at::ScalarType, std::vector<ReduceTask>>& tasks() { return tasks_; }

 private:
  struct Half {
    std::shared_ptr<ReduceBucket> bucket;
    std::shared_ptr<StreamEvent> sent;
  };
  struct Pair {
    Half current, shadow;
  };

  Half make(at::ScalarType scalar_type) const;
  Pair& pair_of(at::ScalarType scalar_type);

  std::int64_t initial_size_;
  bool is_double_;
  c10::Device device_;
  std::unordered_map<at::ScalarType, Pair> pairs_;
  std::unordered_map<at::ScalarType, std::vector<ReduceTask>> tasks_;
};

}  // namespace octavo::dc
