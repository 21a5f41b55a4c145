// SPDX-License-Identifier: Apache-2.0
#include "octavo/device/sycl_kernel.h"

#include <utility>

#include "octavo/device/dispatch.h"
#include "octavo/kernels/backend.h"

namespace octavo {

SyclKernel::SyclKernel(std::string source, std::string function)
    : source_(std::move(source)), function_(std::move(function)) {}

Kernel SyclKernel::compiled_for(c10::Device device, Stream stream, const DeviceRuntime& runtime) {
  const std::lock_guard lock(mutex_);
  const std::pair key(device.type(), device.index());
  const auto found = compiled_.find(key);
  if (found != compiled_.end()) return found->second;
  return compiled_[key] = runtime.compile(stream, source_, function_);
}

void SyclKernel::launch(c10::Device device, std::uint64_t groups, std::uint64_t group_size,
                        const KernelArgument* arguments, std::uint64_t argument_count) {
  const Stream queue = sycl_queue(device);
  const DeviceRuntime& runtime = *backend("sycl").runtime;
  const Stream stream = device.is_cpu() ? nullptr : queue;  // without one, a call returns when its kernel has run
  runtime.launch(stream, compiled_for(device, stream, runtime), groups, group_size, arguments, argument_count);
}

}  // namespace octavo
