// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "octavo/kernels/cuda/driver.h"
#include "octavo/kernels/runtime.h"

/// The devices that CUDA finds here, numbered as CUDA and torch number them; CUDA_VISIBLE_DEVICES decides which those
/// are.
namespace octavo::cuda_backend {

struct Device {
  CUdevice handle;
  std::string name;
  int architecture;            // the compute capability: 90 is 9.0
  bool reads_ordinary_memory;  // kernels may use what malloc gave
  bool moves_pages;            // managed memory can be prefetched
  std::uint64_t total_bytes;
  std::uint32_t compute_units, largest_group;
};

/// Returns an architecture as a compute capability is written: 9.0 for 90.
inline std::string capability(int architecture) {
  return std::to_string(architecture / 10) + '.' + std::to_string(architecture % 10);
}

/// Returns the devices. The list exists as long as the process. Throws Error unsupported as driver() does.
const std::vector<Device>& devices();

/// Returns a device by its number. Throws Error invalid_argument where there is no such device.
const Device& device_at(int index);

/// Returns the number of the queue's device; that of the calling thread's own calls is the first one.
inline int device_of(Queue queue) { return queue.device == kHost ? 0 : queue.device; }

/// Returns the queue's stream; the calling thread's own calls have one too.
CUstream stream_of(Queue queue);

/// Makes a device's primary context, which is the one that torch uses, current for the calling thread in this scope.
/// Meanwhile the thread may allocate, load and query although another thread captures a CUDA graph: otherwise these
/// calls would fail, and end that capture.
class CurrentContext {
 public:
  explicit CurrentContext(int device);
  ~CurrentContext();
  CurrentContext(const CurrentContext&) = delete;
  CurrentContext& operator=(const CurrentContext&) = delete;

 private:
  int capture_mode_ = 2;  // CU_STREAM_CAPTURE_MODE_RELAXED; then the thread's own one, which is restored
};

}  // namespace octavo::cuda_backend
