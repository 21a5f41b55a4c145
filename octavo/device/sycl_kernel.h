// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/Device.h>

#include <array>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <type_traits>
#include <utility>

#include "octavo/export.h"
#include "octavo/kernels/runtime.h"

namespace octavo {

/// A SYCL kernel of a user's own, compiled at run time for the device of the tensors that it is called with: `sycl`,
/// `xpu`, or `cpu`, whose memory SYCL's CPU device reads as it is. examples/extension has one.
///
/// `source` is SYCL 2020 with free-function kernels, and `function` is the name of one that takes an nd_range of one
/// dimension. The source may include "octavo/kernels/sycl/device.h", whose OCTAVO_KERNEL declares such a function, and
/// the rules. Compiling takes some two seconds, or 0.3 seconds with SYCL's cache. Thread-safe. Throws Error unsupported
/// where SYCL is missing, and Error invalid_argument with the compiler's first error where the source does not compile.
class OCTAVO_API SyclKernel {
 public:
  SyclKernel(std::string source, std::string function);

  /// Enqueues groups * group_size items on the device's current stream; on `cpu` it returns when they have run.
  /// Arguments are passed by value: pointers into the device's memory and numbers, of exactly the parameters' types.
  template <class... Arguments>
  void operator()(c10::Device device, std::uint64_t groups, std::uint64_t group_size, const Arguments&... arguments) {
    static_assert((std::is_trivially_copyable_v<Arguments> && ...));
    const std::array<KernelArgument, sizeof...(Arguments)> all = {
        KernelArgument{&arguments, sizeof arguments, std::is_pointer_v<Arguments>}...};
    launch(device, groups, group_size, all.data(), all.size());
  }

  void launch(c10::Device device, std::uint64_t groups, std::uint64_t group_size, const KernelArgument* arguments,
              std::uint64_t argument_count);

 private:
  Kernel compiled_for(c10::Device device, Queue queue, const DeviceRuntime& runtime);

  std::string source_, function_;
  std::mutex mutex_;
  std::map<std::pair<c10::DeviceType, c10::DeviceIndex>, Kernel> compiled_;
};

}  // namespace octavo
