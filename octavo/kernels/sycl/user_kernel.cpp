// SPDX-License-Identifier: Apache-2.0
#include <cstring>

#include "octavo/kernels/sycl/launch.h"
#include "octavo/kernels/sycl/table.h"

namespace octavo::sycl_backend {

namespace {

void set_argument(sycl::handler& handler, int index, const KernelArgument& argument) {
  if (argument.is_pointer) {
    void* memory = nullptr;
    std::memcpy(&memory, argument.value, sizeof memory);
    handler.set_arg(index, memory);
  } else {
    handler.set_arg(index, sycl::ext::oneapi::experimental::raw_kernel_arg(argument.value, argument.bytes));
  }
}

}  // namespace

Kernel compile_user_kernel(Stream stream, const std::string& source, const std::string& function) {
  return guarded("kernels.sycl",
                 [&] { return new sycl::kernel(compile_kernel(queue_or_host(stream), source, function)); });
}

void launch_user_kernel(Stream stream, Kernel kernel, std::uint64_t groups, std::uint64_t group_size,
                        const KernelArgument* arguments, std::uint64_t argument_count) {
  if (groups == 0) return;
  const auto& code = *static_cast<const sycl::kernel*>(kernel);
  const auto expected = code.get_info<sycl::info::kernel::num_args>();
  if (expected != argument_count) {
    fail(ErrorCode::invalid_argument, "kernels.sycl", "expected ", expected, " arguments for ",
         code.get_info<sycl::info::kernel::function_name>(), ", got ", argument_count);
  }
  guarded("kernels.sycl", [&] {
    sycl::event done = queue_or_host(stream).submit([&](sycl::handler& handler) {
      for (std::uint64_t i = 0; i < argument_count; ++i) set_argument(handler, static_cast<int>(i), arguments[i]);
      handler.parallel_for(sycl::nd_range<1>(groups * group_size, group_size), code);
    });
    if (stream == nullptr) done.wait_and_throw();
  });
}

}  // namespace octavo::sycl_backend
