// SPDX-License-Identifier: Apache-2.0
#include <cstring>

#include "octavo/kernels/sycl/launch.h"
#include "octavo/kernels/sycl/table.h"

namespace octavo::sycl_backend {

namespace {

struct UserKernel {
  std::string function;
  sycl::kernel code;
};

void set_argument(sycl::handler& handler, int index, const KernelArgument& argument) {
  if (argument.is_pointer) {
    void* memory = nullptr;
    std::memcpy(&memory, argument.value, sizeof memory);
    handler.set_arg(index, memory);
  } else {
    handler.set_arg(index, sycl::ext::oneapi::experimental::raw_kernel_arg(argument.value, argument.bytes));
  }
}

/// Describes the arguments that were passed, because the driver's message names neither the kernel nor its argument.
std::string described(const KernelArgument* arguments, std::uint64_t count) {
  std::string all;
  for (std::uint64_t i = 0; i < count; ++i) {
    all += i == 0 ? "" : ", ";
    all += arguments[i].is_pointer ? "a pointer" : "a value of " + std::to_string(arguments[i].bytes) + " bytes";
  }
  return all;
}

}  // namespace

Kernel compile_user_kernel(Queue queue, const std::string& source, const std::string& function) {
  return guarded("kernels.sycl",
                 [&] { return new UserKernel{function, compile_kernel(sycl_queue_of(queue), source, function)}; });
}

void launch_user_kernel(Queue queue, Kernel kernel, std::uint64_t groups, std::uint64_t group_size,
                        const KernelArgument* arguments, std::uint64_t argument_count) {
  if (groups == 0) return;
  const auto& [function, code] = *static_cast<const UserKernel*>(kernel);
  const auto expected = code.get_info<sycl::info::kernel::num_args>();
  if (expected != argument_count) {
    fail(ErrorCode::invalid_argument, "kernels.sycl", "expected ", expected, " arguments for ", function, ", got ",
         argument_count);
  }
  try {
    const auto submit = [&] {
      return sycl_queue_of(queue).submit([&](sycl::handler& handler) {
        for (std::uint64_t i = 0; i < argument_count; ++i) set_argument(handler, static_cast<int>(i), arguments[i]);
        handler.parallel_for(sycl::nd_range<1>(groups * group_size, group_size), code);
      });
    };
    sycl::event done = alone(submit);
    if (queue.is_calling_thread()) done.wait_and_throw();
  } catch (const sycl::exception& error) {
    fail(ErrorCode::invalid_argument, "kernels.sycl", function, " cannot be launched with ",
         described(arguments, argument_count), " and groups of ", group_size, " items (", error.what(),
         "): the arguments must be its parameters, and the groups small enough for the device");
  }
}

}  // namespace octavo::sycl_backend
