// SPDX-License-Identifier: Apache-2.0
#include <ATen/MemoryOverlap.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/copy_native.h>
#include <ATen/ops/copy_ops.h>
#include <torch/library.h>

#include "octavo/device/sycl/operators.h"
#include "octavo/device/sycl/pinned.h"
#include "octavo/device/sycl/streams.h"
#include "octavo/device/sycl/twins.h"

namespace octavo::sycl_device {

namespace {

bool is_ours(const at::Tensor& tensor) { return tensor.device().type() == kType; }

/// Whether the queue can copy: the same bytes in the same order, in memory that stays where it is.
bool can_enqueue(const at::Tensor& to, const at::Tensor& from) {
  const auto queue_reads = [](const at::Tensor& tensor) {
    return is_ours(tensor) || is_pinned(tensor.storage().data());
  };
  return to.scalar_type() == from.scalar_type() && to.sizes() == from.sizes() && to.strides() == from.strides() &&
         to.is_non_overlapping_and_dense() && to.is_conj() == from.is_conj() && to.is_neg() == from.is_neg() &&
         queue_reads(to) && queue_reads(from) && (!is_ours(to) || !is_ours(from) || to.device() == from.device());
}

/// The memory of a host tensor is not reused before the stream is done with it.
void keep_for(const at::Tensor& tensor, c10::Stream stream) {
  if (is_ours(tensor)) return;
  const c10::DataPtr& memory = tensor.storage().data_ptr();
  pinned_allocator().record_event(memory.get(), memory.get_context(), stream);
}

void enqueue(at::Tensor& to, const at::Tensor& from) {
  const c10::Stream stream = current_stream((is_ours(to) ? to : from).device().index());
  runtime().copy(queue_of(stream), to.mutable_data_ptr(), from.const_data_ptr(), to.nbytes());
  keep_for(to, stream);
  keep_for(from, stream);
}

/// On the CPU, over the same memory, after what the streams have to do.
void copy_by_host(at::Tensor& to, const at::Tensor& from) {
  Twins twins(0);  // no results: which device does not matter
  const auto twin_of = [&](const at::Tensor& tensor) {
    if (!is_ours(tensor)) return tensor;
    settle(tensor.device().index());
    return twins.twin_of(tensor);
  };
  at::Tensor target = twin_of(to);
  const at::Tensor source = twin_of(from);
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  at::_ops::copy_::redispatch(c10::DispatchKeySet(c10::DispatchKey::CPU), target, source, /*non_blocking=*/false);
}

at::Tensor& copy_(at::Tensor& self, const at::Tensor& source, bool non_blocking) {
  if (self.is_same(source) || self.numel() == 0) return self;
  if (!non_blocking || !can_enqueue(self, source)) return copy_by_host(self, source), self;
  switch (at::get_overlap_status(self, source)) {
    case at::MemOverlapStatus::Full: break;  // onto itself, as DDP does with a bucket of one tensor
    case at::MemOverlapStatus::No: enqueue(self, source); break;
    default: copy_by_host(self, source);  // which refuses it as on the CPU
  }
  return self;
}

}  // namespace

void register_copy() {
  static auto* library =
      new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::PrivateUse1, __FILE__, __LINE__);
  library->impl("copy_", copy_);
  static auto* sparse =
      new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::SparsePrivateUse1, __FILE__, __LINE__);
  sparse->impl("copy_", at::native::copy_sparse_wrapper_);  // copies indices and values by the above
}

}  // namespace octavo::sycl_device
