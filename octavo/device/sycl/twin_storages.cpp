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

/// The storage's memory as the CPU's, which keeps the storage alive.
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
  if (impl->device_type() == kType) return twin;  // of an earlier result of this call
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

}  // namespace octavo::sycl_device
