// SPDX-License-Identifier: Apache-2.0
#include "octavo/device/sycl/figures.h"

#include <ATen/EmptyTensor.h>

#include "octavo/device/sycl/allocator.h"
#include "octavo/device/sycl/generator.h"
#include "octavo/device/sycl/memory_pool.h"
#include "octavo/device/sycl/streams.h"

namespace octavo::sycl_device {

namespace {

c10::DeviceIndex checked(int device) {
  require_device(device);
  return static_cast<c10::DeviceIndex>(device);
}

}  // namespace

int count_devices() noexcept { return device_count(); }

bool has_been_used() noexcept { return is_initialized(); }

bool is_in_bad_fork() noexcept { return is_forked(); }

DeviceFacts facts(int device) { return runtime().facts(checked(device)); }

at::Generator default_generator_of(int device) { return default_generator(checked(device)); }

void seed_all(std::uint64_t seed) { seed_default_generators(seed); }

at::Tensor empty_of_kind(at::IntArrayRef sizes, at::ScalarType dtype, MemoryKind kind, int device) {
  const c10::Device on(kType, checked(device));
  at::detail::check_size_nonnegative(sizes);
  const std::size_t bytes = at::detail::computeStorageNbytesContiguous(sizes, c10::elementSize(dtype));
  c10::Storage storage(c10::Storage::use_byte_size_t(), bytes, allocate(on.index(), kind, bytes, on), &allocator(),
                       /*resizable=*/false);
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(
      std::move(storage), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), c10::scalarTypeToTypeMeta(dtype));
  tensor.unsafeGetTensorImpl()->set_sizes_contiguous(sizes);
  return tensor;
}

void set_memory_limit(int device, std::optional<std::uint64_t> bytes) {
  MemoryPool::instance().set_limit(checked(device), bytes);
}

std::optional<std::uint64_t> memory_limit(int device) { return MemoryPool::instance().limit(checked(device)); }

}  // namespace octavo::sycl_device
