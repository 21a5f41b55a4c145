// SPDX-License-Identifier: Apache-2.0
#include "octavo/kernels/sycl/program.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <optional>

#include "octavo/kernels/sycl/devices.h"

namespace octavo::sycl_backend {

namespace {

namespace ext = sycl::ext::oneapi::experimental;
using Executable = sycl::kernel_bundle<sycl::bundle_state::executable>;

/// A device's kernels, found by name.
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

std::string first_error(const std::string& log) {
  const auto start = log.find("error:");
  if (start == std::string::npos) return log.substr(0, log.find('\n'));
  const auto line = log.rfind('\n', start) + 1;
  return log.substr(line, log.find('\n', start) - line);
}

Executable compile(const sycl::queue& queue) {
  const sycl::device device = queue.get_device();
  const auto name = device.get_info<sycl::info::device::name>();
  if (!device.has(sycl::aspect::fp64)) {
    fail(ErrorCode::unsupported, "kernels.sycl",
         "expected a device with fp64, in which sums of blocks are formed, got ", name);
  }
  ext::include_files headers;
  for (const SourceFile& file : embedded_files) headers.add(file.name, file.text);
  // the order of floating-point operations is part of a rule
  const std::vector<std::string> options = {"-O3", "-I.", "-ffp-contract=off",
                                            "-DOCTAVO_LANES=" + std::to_string(lanes(queue))};
  std::string log;
  try {
    auto source = ext::create_kernel_bundle_from_source(queue.get_context(), ext::source_language::sycl, program_text,
                                                        ext::properties{headers});
    return ext::build(source, std::vector{device}, ext::properties{ext::build_options{options}, ext::save_log{&log}});
  } catch (const sycl::exception& error) {
    fail(ErrorCode::internal, "kernels.sycl", "the kernels do not compile for ", name, ": ",
         first_error(log.empty() ? error.what() : log));
  }
}

}  // namespace

sycl::kernel kernel(const sycl::queue& queue, const std::string& name) {
  struct Slot {
    std::once_flag once;
    std::optional<Program> program;
    std::exception_ptr failure;
  };
  static auto* slots = new std::map<std::size_t, Slot>;  // SYCL's own statics may go before ours
  static std::mutex mutex;
  Slot& slot = [&]() -> Slot& {
    const std::lock_guard lock(mutex);
    return (*slots)[std::hash<sycl::device>()(queue.get_device())];
  }();
  std::call_once(slot.once, [&] {
    try {
      slot.program.emplace(compile(queue));
    } catch (...) {
      slot.failure = std::current_exception();
    }
  });
  if (slot.failure) std::rethrow_exception(slot.failure);
  return slot.program->kernel(name);
}

std::uint64_t lanes(const sycl::queue& queue) {
  const auto sizes = queue.get_device().get_info<sycl::info::device::sub_group_sizes>();
  return *std::max_element(sizes.begin(), sizes.end());
}

std::uint64_t largest_group(const sycl::queue& queue) {
  return std::min<std::uint64_t>(4096, queue.get_device().get_info<sycl::info::device::max_work_group_size>());
}

}  // namespace octavo::sycl_backend
