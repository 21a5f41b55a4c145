// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/Storage.h>
#include <c10/util/SmallVector.h>

namespace octavo::sycl_device {

/// The memory of the tensors of one call: storages of the device as CPU storages over the same memory, and the way
/// back.
class TwinStorages {
 public:
  explicit TwinStorages(c10::DeviceIndex device) : device_(device) {}

  /// The same for the same storage; holds it. Throws Error unsupported for memory that the host cannot read.
  c10::Storage twin_of(const c10::Storage& original);
  /// The original of a twin, whose memory it gets where a kernel has given the twin another (resize_, out=). A storage
  /// in device memory (OnDeviceMemory) becomes the device's own; nothing for one that lies elsewhere.
  c10::Storage original_of(const c10::Storage& twin);

 private:
  struct Shared {
    c10::Storage original, twin;
  };
  void update(const Shared&) const;

  c10::DeviceIndex device_;
  c10::SmallVector<Shared, 6> all_;
};

}  // namespace octavo::sycl_device
