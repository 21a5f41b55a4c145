// SPDX-License-Identifier: Apache-2.0
#include <cstring>
#include <map>
#include <mutex>
#include <utility>

#include "octavo/kernels/lanes/device_backend.h"
#include "octavo/kernels/lanes/program_cache.h"
#include "octavo/kernels/sycl/compile.h"
#include "octavo/kernels/sycl/devices.h"
#include "octavo/kernels/sycl/table.h"

namespace octavo::sycl_backend {

namespace {

/// A program on a device.
class Program {
 public:
  explicit Program(Executable kernels) : kernels_(std::move(kernels)) {}

  sycl::kernel kernel(const std::string& name) {
    const std::lock_guard lock(mutex_);
    const auto found = found_.find(name);
    if (found != found_.end()) return found->second;
    return found_.emplace(name, kernels_.ext_oneapi_get_kernel(name)).first->second;
  }

 private:
  Executable kernels_;
  std::mutex mutex_;
  std::map<std::string, sycl::kernel> found_;
};

struct DeviceHash {
  std::size_t operator()(const Device& key) const {
    return std::hash<sycl::context>()(key.context) ^ std::hash<sycl::device>()(key.device) << 1;
  }
};

/// Returns a program for the device of a queue, compiled at its first use.
Program& program(const sycl::queue& queue, const lanes::KernelName& name) {
  // SYCL's statics may be destroyed before ours
  static auto* const programs = new lanes::ProgramCache<Device, Program, DeviceHash>;
  return programs->get(name, {queue.get_device(), queue.get_context()}, [&] { return compile(queue, name); });
}

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

/// Enqueues a kernel; on the calling thread it returns when the kernel has run.
void submit(Queue queue, const sycl::kernel& code, lanes::Grid grid, std::span<const KernelArgument> arguments) {
  sycl::queue& target = sycl_queue_of(queue);  // it may refuse a forked process, where the mutex may be locked for good
  const auto enqueued = [&] {
    return target.submit([&](sycl::handler& handler) {
      int index = 0;
      for (const KernelArgument& argument : arguments) set_argument(handler, index++, argument);
      handler.parallel_for(sycl::nd_range<1>(grid.groups * grid.group_size, grid.group_size), code);
    });
  };
  sycl::event done = alone(enqueued);
  if (queue.is_calling_thread()) done.wait_and_throw();
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
  return with_sycl_errors(
      "kernels.sycl", [&] { return new UserKernel{function, compile_kernel(sycl_queue_of(queue), source, function)}; });
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
    submit(queue, code, {groups, group_size}, {arguments, argument_count});
  } catch (const sycl::exception& error) {
    fail(ErrorCode::invalid_argument, "kernels.sycl", function, " cannot be launched with ",
         described(arguments, argument_count), " and groups of ", group_size, " items (", error.what(),
         "): the arguments must be its parameters, and the groups small enough for the device");
  }
}

}  // namespace octavo::sycl_backend

namespace octavo::lanes {

Widths widths_of(Queue queue) { return sycl_backend::widths_of(sycl_backend::sycl_queue_of(queue)); }

void enqueue(Queue queue, const KernelName& name, Grid grid, std::span<const KernelArgument> arguments) {
  using namespace sycl_backend;
  with_sycl_errors("kernels.sycl",
                   [&] { submit(queue, program(sycl_queue_of(queue), name).kernel(name.function), grid, arguments); });
}

}  // namespace octavo::lanes
