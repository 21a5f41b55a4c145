// SPDX-License-Identifier: Apache-2.0
#include <limits>
#include <map>
#include <mutex>

#include "octavo/kernels/cuda/compile.h"
#include "octavo/kernels/cuda/devices.h"
#include "octavo/kernels/lanes/device_backend.h"
#include "octavo/kernels/lanes/program_cache.h"

namespace octavo::cuda_backend {

namespace {

/// A program on a device.
class Program {
 public:
  /// Loads what compile() returned; the device's context must be current.
  explicit Program(const std::string& compiled) { driver().cuModuleLoadData(&module_, compiled.data()); }

  CUfunction kernel(const std::string& name) {
    const std::lock_guard lock(mutex_);
    CUfunction& found = found_[name];
    if (found == nullptr) driver().cuModuleGetFunction(&found, module_, name.c_str());
    return found;
  }

 private:
  CUmodule module_ = nullptr;
  std::mutex mutex_;
  std::map<std::string, CUfunction> found_;
};

/// Returns a program, loaded at its first use; the device's context must be current.
Program& program(const lanes::KernelName& name, int device) {
  static auto* const programs = new lanes::ProgramCache<int, Program>;  // programs exist as long as the process
  return programs->get(name, device, [&] { return compile(name, device_at(device).architecture); });
}

void require_ordinary_memory(int device) {
  if (device_at(device).reads_ordinary_memory) return;
  fail(ErrorCode::unsupported, "kernels.cuda", device_at(device).name,
       " does not read ordinary memory of the host: move the tensors to the device");
}

}  // namespace

}  // namespace octavo::cuda_backend

namespace octavo::lanes {

Widths widths_of(Queue) { return cuda_backend::kWidths; }

void enqueue(Queue queue, const KernelName& name, Grid grid, std::span<const KernelArgument> arguments) {
  using namespace cuda_backend;
  constexpr std::uint64_t kMostGroups = std::numeric_limits<std::int32_t>::max();
  if (grid.groups > kMostGroups) {
    fail(ErrorCode::unsupported, "kernels.cuda", "expected at most ", kMostGroups, " groups of ", name.function,
         ", got ", grid.groups, ": take smaller tensors");
  }
  const int device = device_of(queue);
  if (queue.device == kHost) require_ordinary_memory(device);
  const CurrentContext current(device);
  const CUfunction kernel = program(name, device).kernel(name.function);
  std::vector<void*> values;
  for (const KernelArgument& argument : arguments) values.push_back(const_cast<void*>(argument.value));
  const auto groups = static_cast<unsigned>(grid.groups), items = static_cast<unsigned>(grid.group_size);
  driver().cuLaunchKernel(kernel, groups, 1, 1, items, 1, 1, /*shared_bytes=*/0, stream_of(queue), values.data(),
                          /*extra=*/nullptr);
  if (queue.is_calling_thread()) driver().cuStreamSynchronize(stream_of(queue));
}

}  // namespace octavo::lanes
