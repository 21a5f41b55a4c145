// SPDX-License-Identifier: Apache-2.0
#include "octavo/device/sycl_kernel.h"

#include <utility>

#include "octavo/device/dispatch.h"
#include "octavo/kernels/backend.h"
#include "octavo/kernels/error.h"

namespace octavo {

SyclKernel::SyclKernel(std::string source, std::string function)
    : source_(std::move(source)), function_(std::move(function)) {}

Kernel SyclKernel::compiled_for(c10::Device device, Queue queue, const DeviceRuntime& runtime) {
  const std::lock_guard lock(mutex_);
  const std::pair key(device.type(), device.index());
  const auto found = compiled_.find(key);
  if (found != compiled_.end()) return found->second;
  return compiled_[key] = runtime.compile(queue, source_, function_);
}

void SyclKernel::launch(c10::Device device, std::uint64_t groups, std::uint64_t group_size,
                        const KernelArgument* arguments, std::uint64_t argument_count) {
  const Queue current = sycl_queue(device);
  const DeviceRuntime& runtime = *backend("sycl").runtime;
  if (runtime.compile == nullptr) {
    fail(ErrorCode::unsupported, "device.sycl_kernel", "the back end of ", device.str(),
         " compiles no kernels from source");
  }
  const Queue queue = device.is_cpu() ? Queue() : current;  // on the empty queue launch() waits for its kernel
  runtime.launch(queue, compiled_for(device, queue, runtime), groups, group_size, arguments, argument_count);
}

}  // namespace octavo
