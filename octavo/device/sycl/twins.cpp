// SPDX-License-Identifier: Apache-2.0
#include "octavo/device/sycl/twins.h"

#include <ATen/ops/empty.h>

#include "octavo/device/sycl/allocator.h"
#include "octavo/device/sycl/cpu_allocator.h"
#include "octavo/device/sycl/memory_pool.h"
#include "octavo/device/sycl/streams.h"
#include "octavo/kernels/error.h"

namespace octavo::sycl_device {

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

/// What a GPU keeps to itself is the only memory that the host cannot read.
void require_readable(const c10::Storage& storage) {
  static const bool is_cpu = runtime().facts(0).is_cpu;  // SYCL's devices are GPUs, or the CPU
  if (is_cpu) return;
  if (MemoryPool::instance().kind_of(storage.data()) != MemoryKind::device) return;
  fail(ErrorCode::unsupported, "device.fallback", "expected memory that the host can read, got a tensor in memory of ",
       storage.device().str(), " alone: only Octavo's kernels and copies work on it");
}

void release_storage(void* storage) { c10::raw::intrusive_ptr::decref(static_cast<c10::StorageImpl*>(storage)); }

bool have_same_shape(const at::Tensor& a, const at::Tensor& b) {
  return a.storage_offset() == b.storage_offset() && a.sizes() == b.sizes() && a.strides() == b.strides();
}

}  // namespace

at::Tensor Twins::twin_of(const at::Tensor& original) {
  for (const SharedTensor& known : tensors_) {
    if (known.original.is_same(original)) return known.twin;
  }
  if (original.layout() != at::kStrided || original.is_quantized()) {
    fail(ErrorCode::unsupported, "device.fallback", "expected a strided tensor on sycl, got layout ",
         c10::str(original.layout()), original.is_quantized() ? ", quantized" : "");
  }
  at::Tensor twin = tensor_over(twin_storage(original.storage()), c10::DispatchKey::CPU, original);
  tensors_.push_back({original, twin});
  return twin;
}

c10::Storage Twins::twin_storage(const c10::Storage& original) {
  c10::StorageImpl* impl = original.unsafeGetStorageImpl();
  for (const SharedStorage& known : storages_) {
    if (known.original.unsafeGetStorageImpl() == impl) return known.twin;
  }
  require_readable(original);
  void* memory = impl->mutable_data();  // first, so that memory shared for copy-on-write becomes the storage's own
  c10::raw::intrusive_ptr::incref(impl);
  c10::DataPtr data(memory, impl, &release_storage, c10::kCPU);
  c10::Storage twin(c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), impl->nbytes(),
                                                          std::move(data), &cpu_allocator(), impl->resizable()));
  storages_.push_back({original, twin});
  return twin;
}

c10::Storage Twins::original_storage(const c10::Storage& twin) {
  for (const SharedStorage& known : storages_) {
    if (known.twin.unsafeGetStorageImpl() == twin.unsafeGetStorageImpl()) return known.original;
  }
  c10::StorageImpl* impl = twin.unsafeGetStorageImpl();
  if (impl->device_type() == kType) return twin;  // of an earlier result of this call
  if (impl->_mutable_data_ptr_no_checks().get_deleter() != &release) return {};
  impl->_mutable_data_ptr_no_checks().unsafe_set_device({kType, device_});
  impl->set_allocator(&allocator());
  return twin;
}

at::Tensor Twins::original_of(const at::Tensor& result) {
  if (!result.defined() || result.device().type() == kType) return result;
  for (const SharedTensor& known : tensors_) {
    if (known.twin.is_same(result)) return known.original;
  }
  if (result.layout() != at::kStrided || result.is_quantized()) {
    fail(ErrorCode::unsupported, "device.fallback", "expected a strided result on sycl, got layout ",
         c10::str(result.layout()), result.is_quantized() ? ", quantized" : "");
  }
  c10::Storage storage = original_storage(result.storage());
  if (storage) return tensor_over(std::move(storage), c10::DispatchKey::PrivateUse1, result);
  return original_of(at::empty_like(result).copy_(result));  // in device memory: we are inside of OnDeviceMemory
}

void Twins::update(const at::Tensor& original) {
  for (const SharedTensor& known : tensors_) {
    if (!known.original.is_same(original)) continue;
    c10::TensorImpl* impl = original.unsafeGetTensorImpl();
    c10::StorageImpl* twin = known.twin.storage().unsafeGetStorageImpl();
    const c10::Storage storage = original_storage(known.twin.storage());
    if (storage.unsafeGetStorageImpl() != impl->storage().unsafeGetStorageImpl()) impl->set_storage_keep_dtype(storage);
    if (storage.unsafeGetStorageImpl() != twin &&
        twin->_mutable_data_ptr_no_checks().get_deleter() != &release_storage) {
      c10::DataPtr grown = twin->set_data_ptr(c10::DataPtr());
      grown.unsafe_set_device({kType, device_});
      storage.set_data_ptr_noswap(std::move(grown));
      storage.set_nbytes(twin->nbytes());
    }
    if (!have_same_shape(original, known.twin)) {
      impl->set_sizes_and_strides(known.twin.sizes(), known.twin.strides(), known.twin.storage_offset());
    }
    return;
  }
}

}  // namespace octavo::sycl_device
