// SPDX-License-Identifier: Apache-2.0
#include "octavo/device/sycl/memory.h"

#include <ATen/Context.h>
#include <ATen/EmptyTensor.h>
#include <ATen/native/TensorFactories.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/resize_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include <algorithm>
#include <utility>

#include "octavo/device/sycl/allocators.h"
#include "octavo/device/sycl/memory_pool.h"
#include "octavo/device/sycl/operators.h"
#include "octavo/device/sycl/streams.h"
#include "octavo/kernels/error.h"

namespace octavo::sycl_device {

namespace {

constexpr c10::DispatchKeySet kKeys(c10::DispatchKey::PrivateUse1);

/// Makes the device of a new tensor the current one.
c10::OptionalDeviceGuard guard_for(std::optional<at::Device> device, std::optional<bool> pin_memory) {
  const c10::DeviceIndex index = device && device->has_index() ? device->index() : current_device();
  if (pin_memory.value_or(false)) {
    fail(ErrorCode::invalid_argument, "device.sycl",
         "pin_memory works on CPU tensors; this one is on sycl:", int{index});
  }
  require_device(index);
  return c10::OptionalDeviceGuard(at::Device(kType, index));
}

/// Fills a tensor that nobody has written yet, where torch is told to do so.
at::Tensor filled_if_deterministic(at::Tensor made) {
  const at::Context& context = at::globalContext();
  if (context.deterministicAlgorithms() && context.deterministicFillUninitializedMemory()) {
    at::native::fill_empty_deterministic_(made);
  }
  return made;
}

at::Tensor empty(at::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                 std::optional<at::Device> device, std::optional<bool> pin_memory,
                 std::optional<at::MemoryFormat> format) {
  const auto guard = guard_for(device, pin_memory);
  return filled_if_deterministic(
      at::detail::empty_generic(size, &allocator(), kKeys, at::dtype_or_default(dtype), format));
}

at::Tensor empty_strided(at::IntArrayRef size, at::IntArrayRef stride, std::optional<at::ScalarType> dtype,
                         std::optional<at::Layout>, std::optional<at::Device> device, std::optional<bool> pin_memory) {
  const auto guard = guard_for(device, pin_memory);
  return filled_if_deterministic(
      at::detail::empty_strided_generic(size, stride, &allocator(), kKeys, at::dtype_or_default(dtype)));
}

const at::Tensor& resize_(const at::Tensor& self, at::IntArrayRef size, std::optional<at::MemoryFormat> format) {
  const c10::OptionalDeviceGuard guard(self.device());
  settle(self.device().index());
  const OnDeviceMemory scope(self.device().index());
  return at::native::resize_(self, size, format);
}

at::Tensor& set_source_storage_(at::Tensor& self, at::Storage source, std::int64_t offset, at::IntArrayRef size,
                                at::IntArrayRef stride) {
  const c10::OptionalDeviceGuard guard(self.device());
  settle(self.device().index());
  return at::native::set_storage_cpu_(self, std::move(source), offset, size, stride);
}

at::Tensor& set_to_nothing_(at::Tensor& self) {
  const c10::OptionalDeviceGuard guard(self.device());
  at::Storage nothing(at::Storage::use_byte_size_t(), 0, &allocator(), /*resizable=*/true);
  return at::native::set_storage_cpu_(self, std::move(nothing), 0, {0}, {});
}

void record_stream(at::Tensor& self, at::Stream stream) { allocator().recordStream(self.storage().data_ptr(), stream); }

}  // namespace

at::Tensor empty_of_kind(at::IntArrayRef sizes, at::ScalarType dtype, MemoryKind kind, int device) {
  const c10::Device on(kType, require_device(device));
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
  MemoryPool::instance().set_limit(require_device(device), bytes);
}

std::optional<std::uint64_t> memory_limit(int device) { return MemoryPool::instance().limit(require_device(device)); }

std::uint64_t available_memory(int device) { return MemoryPool::instance().available_bytes(require_device(device)); }

void resize_storage(const c10::Storage& storage, std::size_t bytes) {
  TORCH_CHECK(storage.resizable(), "Trying to resize storage that is not resizable");
  const c10::Device device = storage.device();
  const c10::OptionalDeviceGuard guard(device);
  c10::DataPtr resized(nullptr, device);  // no bytes yet, but already on the storage's device
  if (bytes > 0) resized = allocator().allocate(bytes);
  const std::size_t kept = std::min(bytes, storage.nbytes());
  if (kept > 0) allocator().copy_data(resized.mutable_get(), storage.data(), kept);
  storage.set_data_ptr_noswap(std::move(resized));
  storage.set_nbytes(bytes);
}

void register_memory_operators() {
  static auto* library =
      new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::PrivateUse1, __FILE__, __LINE__);
  library->impl("empty.memory_format", empty);
  library->impl("empty_strided", empty_strided);
  library->impl("resize_", resize_);
  library->impl("set_.source_Storage_storage_offset", set_source_storage_);
  library->impl("set_.source_Storage", static_cast<at::Tensor& (*)(at::Tensor&, at::Storage)>(at::native::set_));
  library->impl("set_.source_Tensor", at::native::set_tensor_);
  library->impl("set_", set_to_nothing_);
  library->impl("record_stream", record_stream);
  // These only look at sizes and strides: torch's own functions serve any device.
  library->impl("view", at::native::view);
  library->impl("as_strided", at::native::as_strided_tensorimpl);
  library->impl("_reshape_alias", at::native::_reshape_alias);
  library->impl("unfold", at::native::unfold);
}

}  // namespace octavo::sycl_device
