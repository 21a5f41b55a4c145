// SPDX-License-Identifier: Apache-2.0
#include "octavo/device/sycl/twin_storages.h"

#include "octavo/device/sycl/allocator.h"
#include "octavo/device/sycl/cpu_allocator.h"
#include "octavo/device/sycl/devices.h"
#include "octavo/device/sycl/host_access.h"
#include "octavo/kernels/error.h"

namespace octavo::sycl_device {

namespace {

void require_readable(const c10::Storage& storage) {
  if (host_reads(storage)) return;
  fail(ErrorCode::unsupported, "device.fallback", "expected memory that the host can read, got a tensor in memory of ",
       storage.device().str(), " alone: only Octavo's kernels and copies work on it");
}

void release_storage(void* storage) { c10::raw::intrusive_ptr::decref(static_cast<c10::StorageImpl*>(storage)); }

}  // namespace

c10::Storage TwinStorages::twin_of(const c10::Storage& original) {
  c10::StorageImpl* impl = original.unsafeGetStorageImpl();
  for (const Shared& known : all_) {
    if (known.original.unsafeGetStorageImpl() == impl) return known.twin;
  }
  require_readable(original);
  void* memory = impl->mutable_data();  // first, so that memory shared for copy-on-write becomes the storage's own
  c10::raw::intrusive_ptr::incref(impl);
  c10::DataPtr data(memory, impl, &release_storage, c10::kCPU);
  c10::Storage twin(c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), impl->nbytes(),
                                                          std::move(data), &cpu_allocator(), impl->resizable()));
  all_.push_back({original, twin});
  return twin;
}

c10::Storage TwinStorages::original_of(const c10::Storage& twin) {
  for (const Shared& known : all_) {
    if (known.twin.unsafeGetStorageImpl() == twin.unsafeGetStorageImpl()) return known.original;
  }
  c10::StorageImpl* impl = twin.unsafeGetStorageImpl();
  if (impl->device_type() == kType) return twin;  // of an earlier result of this call
  if (impl->_mutable_data_ptr_no_checks().get_deleter() != &release) return {};
  impl->_mutable_data_ptr_no_checks().unsafe_set_device({kType, device_});
  impl->set_allocator(&allocator());
  return twin;
}

void TwinStorages::update(const c10::Storage& original, const c10::Storage& twin) const {
  c10::StorageImpl* written = twin.unsafeGetStorageImpl();
  if (original.unsafeGetStorageImpl() == written) return;
  if (written->_mutable_data_ptr_no_checks().get_deleter() == &release_storage) return;  // still the original's memory
  c10::DataPtr grown = written->set_data_ptr(c10::DataPtr());
  grown.unsafe_set_device({kType, device_});
  original.set_data_ptr_noswap(std::move(grown));
  original.set_nbytes(written->nbytes());
}

}  // namespace octavo::sycl_device
