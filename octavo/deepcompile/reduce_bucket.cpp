// SPDX-License-Identifier: Apache-2.0
#include "octavo/deepcompile/reduce_bucket.h"

#include <ATen/ATen.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "octavo/kernels/error.h"

namespace octavo::dc {

namespace {

constexpr const char* kBucketWhere = "deepcompile.reduce_bucket";

std::int64_t require_size(std::int64_t size) {
  if (size < 0) fail(ErrorCode::invalid_argument, kBucketWhere, "expected a size of at least 0 elements, got ", size);
  return size;
}

at::Tensor memory_for(std::int64_t size, at::ScalarType dtype, c10::Device device, const char* advice) {
  const auto refuse = [&](const c10::Error& refused) {
    fail(ErrorCode::out_of_memory, kBucketWhere, "a bucket of ", size, " elements of ", at::toString(dtype), " on ",
         device.str(), " cannot be allocated: ", refused.what_without_backtrace(), "; ", advice);
  };
  try {
    return at::empty({require_size(size)}, at::dtype(dtype).device(device));
  } catch (const c10::OutOfMemoryError& refused) {
    refuse(refused);
  } catch (const c10::Error& refused) {
    if (!device.is_cpu()) throw;  // its device may be absent
    refuse(refused);
  }
  return {};
}

}  // namespace

ReduceBucket::ReduceBucket(std::int64_t size, at::ScalarType scalar_type, c10::Device device)
    : buffer_(memory_for(size, scalar_type, device, "give init() a smaller bucket_size")) {}

void ReduceBucket::reserve(std::int64_t size) {
  if (require_size(size) <= getSize()) return;
  if (offset_ > 0) {
    fail(ErrorCode::invalid_argument, kBucketWhere, "a bucket with ", offset_, " elements in use cannot grow from ",
         getSize(), " to ", size, ": send it first");
  }
  buffer_ = memory_for(size, buffer_.scalar_type(), buffer_.device(), "it must be as large as one gradient");
}

at::Tensor ReduceBucket::allocate(std::int64_t numel) {
  if (require_size(numel) > getSize() - offset_) {
    fail(ErrorCode::invalid_argument, kBucketWhere, "expected at most ", getSize() - offset_,
         " elements, which are free of ", getSize(), ", got ", numel,
         ": send the bucket, or let it grow with reserve()");
  }
  at::Tensor slice = buffer_.narrow(0, offset_, numel);
  offset_ += numel;
  return slice;
}

DoubleBufferedReduceBucket::Half DoubleBufferedReduceBucket::make(at::ScalarType scalar_type) const {
  return {std::make_shared<ReduceBucket>(initial_size_, scalar_type, device_),
          make_event(device_.type(), /*timing=*/false)};
}

DoubleBufferedReduceBucket::Pair& DoubleBufferedReduceBucket::pair_of(at::ScalarType scalar_type) {
  Pair& pair = pairs_[scalar_type];
  if (!pair.current.bucket) pair.current = make(scalar_type);
  return pair;
}

std::shared_ptr<ReduceBucket> DoubleBufferedReduceBucket::getBuffer(at::ScalarType scalar_type) {
  return pair_of(scalar_type).current.bucket;
}

std::shared_ptr<StreamEvent> DoubleBufferedReduceBucket::getEvent(at::ScalarType scalar_type) {
  return pair_of(scalar_type).current.sent;
}

void DoubleBufferedReduceBucket::swap(at::ScalarType scalar_type, c10::Stream rs_stream, c10::Stream copy_stream) {
  Pair& pair = pair_of(scalar_type);
  pair.current.sent->record(rs_stream);
  if (!device_.is_cpu()) {  // the allocator must not give the memory away before these are done with it
    const c10::impl::VirtualGuardImpl guard(device_.type());
    const at::Tensor memory = pair.current.bucket->getBuffer();
    guard.recordDataPtrOnStream(memory.storage().data_ptr(), rs_stream);
    guard.recordDataPtrOnStream(memory.storage().data_ptr(), copy_stream);
  }
  pair.current.bucket->reset();
  if (is_double_) std::swap(pair.current, pair.shadow);
}

}  // namespace octavo::dc
