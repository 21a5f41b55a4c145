// SPDX-License-Identifier: Apache-2.0
#include <ATen/EmptyTensor.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/copy_native.h>
#include <ATen/ops/copy_ops.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include "octavo/device/sycl/allocators.h"
#include "octavo/device/sycl/operators.h"
#include "octavo/device/sycl/streams.h"
#include "octavo/device/sycl/twins.h"

namespace octavo::sycl_device {

namespace {

bool is_private(const at::Tensor& tensor) { return is_ours(tensor) && !host_reads(tensor.storage()); }

// ---- by the queue

/// Whether the queue can copy: the same bytes in the same order, in memory that stays where it is.
bool can_enqueue(const at::Tensor& to, const at::Tensor& from) {
  const auto queue_reads = [](const at::Tensor& tensor) {
    return is_ours(tensor) || is_pinned(tensor.storage().data());
  };
  return to.scalar_type() == from.scalar_type() && to.sizes() == from.sizes() && to.strides() == from.strides() &&
         to.is_non_overlapping_and_dense() && to.is_conj() == from.is_conj() && to.is_neg() == from.is_neg() &&
         queue_reads(to) && queue_reads(from) && (!is_ours(to) || !is_ours(from) || to.device() == from.device());
}

/// Keeps the memory of a host tensor from being reused before the stream is done with it.
void keep_for(const at::Tensor& tensor, c10::Stream stream) {
  if (is_ours(tensor)) return;
  const c10::DataPtr& memory = tensor.storage().data_ptr();
  pinned_allocator().record_event(memory.get(), memory.get_context(), stream);
}

void enqueue(at::Tensor& to, const at::Tensor& from, bool is_waited_for) {
  const c10::Device device = (is_ours(to) ? to : from).device();
  const c10::OptionalDeviceGuard guard(device);  // a lazy clone gets its memory here
  const c10::Stream stream = current_stream(device.index());
  runtime().copy(queue_of(stream), to.mutable_data_ptr(), from.const_data_ptr(), to.nbytes());
  if (is_waited_for) return runtime().wait(queue_of(stream));
  keep_for(to, stream);
  keep_for(from, stream);
}

// ---- by the host

/// Copies on the CPU, over the same memory, after the streams have done what they were given.
void copy_by_host(const at::Tensor& to, const at::Tensor& from) {
  Twins twins(0);  // there are no results, so the device does not matter
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

// ---- by staging: through page-locked memory of the host, where the host cannot read the device's

void transfer(c10::DeviceIndex device, void* to, const void* from, std::uint64_t bytes) {
  const Queue queue = queue_of(current_stream(device));
  runtime().copy(queue, to, from, bytes);
  runtime().wait(queue);
}

/// Makes an uninitialized CPU tensor in page-locked memory with a tensor's dtype, sizes, strides and flags. Its storage
/// covers what lies from the tensor's first element to its last.
at::Tensor staging_for(const at::Tensor& tensor) {
  const c10::OptionalDeviceGuard guard(tensor.device());  // the memory is page-locked for this device's driver
  at::Tensor staged =
      at::detail::empty_strided_generic(tensor.sizes(), tensor.strides(), &pinned_allocator(),
                                        c10::DispatchKeySet(c10::DispatchKey::CPU), tensor.scalar_type());
  staged._set_conj(tensor.is_conj());
  staged._set_neg(tensor.is_neg());
  return staged;
}

/// Makes such a tensor and copies the tensor's bytes to it, those between its elements too. Returns when they are
/// there.
at::Tensor download(const at::Tensor& tensor) {
  at::Tensor staged = staging_for(tensor);
  transfer(tensor.device().index(), staged.mutable_data_ptr(), tensor.const_data_ptr(), staged.storage().nbytes());
  return staged;
}

/// Copies the whole storage of `staged` back to the tensor: what was written between the tensor's elements since its
/// download is overwritten. Returns when it is done.
void upload(const at::Tensor& staged, const at::Tensor& tensor) {
  transfer(tensor.device().index(), tensor.mutable_data_ptr(), staged.const_data_ptr(), staged.storage().nbytes());
}

/// Copies as copy_by_host does, where the host cannot read one of the tensors, or both.
void copy_by_staging(const at::Tensor& to, const at::Tensor& from) {
  at::assert_no_internal_overlap(to);  // the host's copy cannot see it: its tensors share no memory
  at::assert_no_partial_overlap(to, from);
  const at::Tensor source = is_private(from) ? download(from) : from;
  if (!is_private(to)) return copy_by_host(to, source);
  const at::Tensor target = to.is_non_overlapping_and_dense() ? staging_for(to) : download(to);
  copy_by_host(target, source);
  upload(target, to);
}

// ---- the operator

at::Tensor& copy_(at::Tensor& self, const at::Tensor& source, bool non_blocking) {
  if (self.is_same(source)) return self;
  if (self.numel() == 0) {
    static_cast<void>(source.expand(self.sizes()));  // throws for a size that does not fit
    return self;
  }
  const bool by_host = !is_private(self) && !is_private(source);
  if ((non_blocking || !by_host) && can_enqueue(self, source)) {
    switch (at::get_overlap_status(self, source)) {
      case at::MemOverlapStatus::Full: return self;  // onto itself, as DDP does with a bucket of one tensor
      case at::MemOverlapStatus::No: return enqueue(self, source, /*is_waited_for=*/!non_blocking), self;
      default: break;  // refused below, as on the CPU
    }
  }
  by_host ? copy_by_host(self, source) : copy_by_staging(self, source);
  return self;
}

}  // namespace

void register_copy() {
  static auto* library =
      new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::PrivateUse1, __FILE__, __LINE__);
  library->impl("copy_", copy_);
  static auto* sparse =
      new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::SparsePrivateUse1, __FILE__, __LINE__);
  sparse->impl("copy_", at::native::copy_sparse_wrapper_);  // copies indices and values with copy_ above
}

}  // namespace octavo::sycl_device
