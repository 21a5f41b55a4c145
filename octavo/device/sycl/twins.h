// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>
#include <c10/util/SmallVector.h>

#include "octavo/device/sycl/devices.h"
#include "octavo/export.h"

/// The device's tensors as CPU tensors over the same memory, called their twins, for code that works on the CPU.
namespace octavo::sycl_device {

inline bool is_ours(const at::Tensor& tensor) { return tensor.device().type() == kType; }

/// Whether the host reads and writes the memory where it lies: false only for kind `device` on a GPU. Thread-safe.
bool host_reads(const c10::Storage&);

/// Whether the devices are the host's own processor. Throws Error unsupported where SYCL is missing.
bool kernels_run_on_host();

/// Sets whether from now on the CPU device is treated as a GPU: memory of kind `device` is then its own, and gradients
/// are encoded by its kernels. For tests, which otherwise would need a GPU. Process-wide.
OCTAVO_API void act_as_gpu(bool is_gpu) noexcept;

/// The memory of the tensors of one call: turns storages of the device into CPU storages over the same memory, and
/// back.
class TwinStorages {
 public:
  explicit TwinStorages(c10::DeviceIndex device) : device_(device) {}

  /// Returns the twin of a storage, the same for the same storage, and keeps the storage alive. Throws Error
  /// unsupported for memory that the host cannot read.
  c10::Storage twin_of(const c10::Storage& original);
  /// Returns the original of a twin. Where a kernel has given the twin other memory (resize_, out=), the original gets
  /// that. A storage in device memory (OnDeviceMemory) becomes the device's own. Returns none for one that lies
  /// elsewhere.
  c10::Storage original_of(const c10::Storage& twin);

 private:
  struct Shared {
    c10::Storage original, twin;
  };
  void update(const Shared&) const;

  c10::DeviceIndex device_;
  c10::SmallVector<Shared, 6> all_;
};

/// The tensors of one call, strided or sparse COO, as CPU tensors over the same memory, and the way back. Tensors that
/// share a storage on the device share one here. Nothing is copied. Made for one call on one thread; the caller has
/// settled the device.
class Twins {
 public:
  explicit Twins(c10::DeviceIndex device) : storages_(device) {}

  /// Returns a CPU tensor over the memory of a tensor of the device, the same for the same tensor, and keeps the memory
  /// alive. A tensor on the CPU is its own twin.
  at::Tensor twin_of(const at::Tensor& original);

  /// Returns the tensor of the device that a CPU kernel means by `result`. It is the original of a twin, a view of an
  /// original's storage, or the result itself where that lies in device memory (OnDeviceMemory). A result that lies
  /// elsewhere is copied.
  at::Tensor original_of(const at::Tensor& result);

  /// Takes over new sizes, strides, memory and storage after a kernel that writes to the original's twin.
  void update(const at::Tensor& original);

 private:
  struct SharedTensor {
    at::Tensor original, twin;
  };
  at::Tensor strided_twin(const at::Tensor& original);
  at::Tensor strided_original(const at::Tensor& result);
  at::Tensor sparse_twin(const at::Tensor& original);
  at::Tensor sparse_original(const at::Tensor& result);
  void update_strided(const at::Tensor& original, const at::Tensor& twin);
  void update_sparse(const at::Tensor& original, const at::Tensor& twin);

  TwinStorages storages_;
  c10::SmallVector<SharedTensor, 6> tensors_;
};

}  // namespace octavo::sycl_device
