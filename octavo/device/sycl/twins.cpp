// SPDX-License-Identifier: Apache-2.0
#include "octavo/device/sycl/twins.h"

#include <ATen/native/SparseTensorUtils.h>
#include <ATen/ops/empty_like.h>

#include <atomic>

#include "octavo/device/sycl/allocators.h"
#include "octavo/device/sycl/memory_pool.h"
#include "octavo/kernels/error.h"

namespace octavo::sycl_device {

// ---- what the host reads

namespace {

std::atomic<bool> acts_as_gpu = false;

}  // namespace

bool kernels_run_on_host() {
  static const bool is_cpu = runtime().facts(0).is_cpu;  // SYCL's devices are GPUs, or the CPU
  return is_cpu && !acts_as_gpu;
}

bool host_reads(const c10::Storage& storage) {
  if (storage.device_type() != kType) return true;
  return kernels_run_on_host() || MemoryPool::instance().kind_of(storage.data()) != MemoryKind::device;
}

void act_as_gpu(bool is_gpu) noexcept { acts_as_gpu = is_gpu; }

// ---- storages

namespace {

void require_readable(const c10::Storage& storage) {
  if (host_reads(storage)) return;
  fail(ErrorCode::unsupported, "device.fallback", "the host cannot read this tensor, which lies only in memory of ",
       storage.device().str(), ": only Octavo's kernels and copies work on it, .cpu() among them");
}

void release_storage(void* storage) { c10::raw::intrusive_ptr::decref(static_cast<c10::StorageImpl*>(storage)); }

/// Returns the storage's memory as memory of the CPU, which keeps the storage alive.
c10::DataPtr host_view(c10::StorageImpl* storage) {
  void* memory = storage->mutable_data();
  c10::raw::intrusive_ptr::incref(storage);
  return {memory, storage, &release_storage, c10::kCPU};
}

}  // namespace

c10::Storage TwinStorages::twin_of(const c10::Storage& original) {
  c10::StorageImpl* impl = original.unsafeGetStorageImpl();
  for (const Shared& known : all_) {
    if (known.original.unsafeGetStorageImpl() == impl) return known.twin;
  }
  require_readable(original);
  c10::DataPtr data = host_view(impl);  // first: memory shared for copy-on-write becomes the storage's own, of its size
  c10::Storage twin(c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), impl->nbytes(),
                                                          std::move(data), &cpu_allocator(), impl->resizable()));
  all_.push_back({original, twin});
  return twin;
}

c10::Storage TwinStorages::original_of(const c10::Storage& twin) {
  for (const Shared& known : all_) {
    if (known.twin.unsafeGetStorageImpl() != twin.unsafeGetStorageImpl()) continue;
    update(known);
    return known.original;
  }
  c10::StorageImpl* impl = twin.unsafeGetStorageImpl();
  if (impl->device_type() == kType) return twin;  // from an earlier result of this call
  if (impl->_mutable_data_ptr_no_checks().get_deleter() != &release) return {};
  impl->_mutable_data_ptr_no_checks().unsafe_set_device({kType, device_});
  impl->set_allocator(&allocator());
  return twin;
}

void TwinStorages::update(const Shared& known) const {
  c10::StorageImpl* written = known.twin.unsafeGetStorageImpl();
  if (written->_mutable_data_ptr_no_checks().get_deleter() == &release_storage) return;  // still the original's memory
  c10::DataPtr grown = written->set_data_ptr(c10::DataPtr());
  grown.unsafe_set_device({kType, device_});
  known.original.set_data_ptr_noswap(std::move(grown));
  known.original.set_nbytes(written->nbytes());
  written->set_data_ptr_noswap(host_view(known.original.unsafeGetStorageImpl()));  // another tensor may lie on it
}

// ---- tensors

namespace {

/// A tensor over `storage` with the shape and the flags of `like`.
at::Tensor tensor_over(c10::Storage storage, c10::DispatchKey key, const at::Tensor& like) {
  auto impl = c10::make_intrusive<c10::TensorImpl>(std::move(storage), c10::DispatchKeySet(key), like.dtype());
  impl->set_sizes_and_strides(like.sizes(), like.strides(), like.storage_offset());
  const auto* old = like.unsafeGetTensorImpl();
  if (like.is_conj()) impl->_set_conj(true);
  if (like.is_neg()) impl->_set_neg(true);
  if (old->is_wrapped_number()) impl->set_wrapped_number(true);
  return at::Tensor(std::move(impl));
}

at::Tensor sparse_over(c10::DispatchKey key, const at::Tensor& like, const at::Tensor& indices,
                       const at::Tensor& values) {
  auto tensor = at::detail::make_tensor<at::SparseTensorImpl>(c10::DispatchKeySet(key), like.dtype());
  auto* impl = at::sparse::get_sparse_impl(tensor);
  const auto* old = at::sparse::get_sparse_impl(like);
  impl->raw_resize_(old->sparse_dim(), old->dense_dim(), like.sizes());
  impl->set_indices_and_values_unsafe(indices, values);
  impl->set_coalesced(old->coalesced());
  return tensor;
}

void require_layout(const at::Tensor& tensor) {
  if ((tensor.layout() == at::kStrided || tensor.layout() == at::kSparse) && !tensor.is_quantized()) return;
  fail(ErrorCode::unsupported, "device.fallback",
       "operators on sycl take strided and sparse COO tensors that are not quantized; ", "this one has layout ",
       c10::str(tensor.layout()), tensor.is_quantized() ? " and is quantized" : "", ": use another layout, or the cpu");
}

bool have_same_shape(const at::Tensor& a, const at::Tensor& b) {
  return a.storage_offset() == b.storage_offset() && a.sizes() == b.sizes() && a.strides() == b.strides();
}

}  // namespace

at::Tensor Twins::twin_of(const at::Tensor& original) {
  for (const SharedTensor& known : tensors_) {
    if (known.original.is_same(original)) return known.twin;
  }
  at::Tensor twin = original;
  if (!original.is_cpu()) {
    require_layout(original);
    twin = original.is_sparse() ? sparse_twin(original) : strided_twin(original);
  }
  tensors_.push_back({original, twin});
  return twin;
}

at::Tensor Twins::strided_twin(const at::Tensor& original) {
  return tensor_over(storages_.twin_of(original.storage()), c10::DispatchKey::CPU, original);
}

at::Tensor Twins::sparse_twin(const at::Tensor& original) {
  const auto* impl = at::sparse::get_sparse_impl(original);
  return sparse_over(c10::DispatchKey::SparseCPU, original, twin_of(impl->indices()), twin_of(impl->values()));
}

at::Tensor Twins::original_of(const at::Tensor& result) {
  if (!result.defined() || is_ours(result)) return result;
  for (const SharedTensor& known : tensors_) {
    if (known.twin.is_same(result)) return known.original;
  }
  require_layout(result);
  return result.is_sparse() ? sparse_original(result) : strided_original(result);
}

at::Tensor Twins::strided_original(const at::Tensor& result) {
  c10::Storage storage = storages_.original_of(result.storage());
  if (storage) return tensor_over(std::move(storage), c10::DispatchKey::PrivateUse1, result);
  return strided_original(at::empty_like(result).copy_(result));  // device memory: we are inside of OnDeviceMemory
}

at::Tensor Twins::sparse_original(const at::Tensor& result) {
  const auto* impl = at::sparse::get_sparse_impl(result);
  return sparse_over(c10::DispatchKey::SparsePrivateUse1, result, original_of(impl->indices()),
                     original_of(impl->values()));
}

void Twins::update(const at::Tensor& original) {
  for (const SharedTensor& known : tensors_) {
    if (!known.original.is_same(original) || original.is_cpu()) continue;
    const at::Tensor twin = known.twin;  // what follows may move the list
    return original.is_sparse() ? update_sparse(original, twin) : update_strided(original, twin);
  }
}

void Twins::update_strided(const at::Tensor& original, const at::Tensor& twin) {
  c10::TensorImpl* impl = original.unsafeGetTensorImpl();
  const c10::Storage storage = storages_.original_of(twin.storage());
  if (storage.unsafeGetStorageImpl() != impl->storage().unsafeGetStorageImpl()) impl->set_storage_keep_dtype(storage);
  if (!have_same_shape(original, twin)) {
    impl->set_sizes_and_strides(twin.sizes(), twin.strides(), twin.storage_offset());
  }
}

void Twins::update_sparse(const at::Tensor& original, const at::Tensor& twin) {
  const auto* written = at::sparse::get_sparse_impl(twin);
  auto* impl = at::sparse::get_sparse_impl(original);
  impl->raw_resize_(written->sparse_dim(), written->dense_dim(), twin.sizes());
  impl->set_indices_and_values_unsafe(original_of(written->indices()), original_of(written->values()));
  impl->set_coalesced(written->coalesced());
}

}  // namespace octavo::sycl_device
