// SPDX-License-Identifier: Apache-2.0
#include "octavo/kernels/sycl/compile.h"

#include <algorithm>
#include <chrono>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "octavo/kernels/sycl/devices.h"

namespace octavo::sycl_backend {

namespace {

namespace ext = sycl::ext::oneapi::experimental;

struct Source {
  std::string text, options;
  std::string name;       // named in the error where it does not compile
  ErrorCode its_failure;  // invalid_argument where the text is a user's
};

Executable compile_source(const sycl::queue& queue, const Source& source) {
  const sycl::device device = queue.get_device();
  ext::include_files headers;
  for (const lanes::SourceFile& file : lanes::embedded_files) headers.add(file.name, file.text);
  // No contraction, because the order of floating-point operations is part of a rule.
  std::vector<std::string> options = lanes::options_of(source.options, widths_of(queue));
  options.insert(options.end(), {"-O3", "-I.", "-ffp-contract=off", "-fno-sycl-id-queries-fit-in-int"});
  std::string log;
  try {
    auto bundle = ext::create_kernel_bundle_from_source(queue.get_context(), ext::source_language::sycl, source.text,
                                                        ext::properties{headers});
    return ext::build(bundle, std::vector{device}, ext::properties{ext::build_options{options}, ext::save_log{&log}});
  } catch (const sycl::exception& error) {
    fail(source.its_failure, "kernels.sycl", source.name, " does not compile for ",
         device.get_info<sycl::info::device::name>(), ": ", lanes::first_error(log.empty() ? error.what() : log));
  }
}

/// Compiles a source so that the next process finds it in SYCL's cache. The cache keeps a program that was compiled
/// from source under another key than the one by which the next process will look for it. A program that is compiled
/// once more, from the cache and in a third of a second, is found. The time of the first compilation tells where the
/// program came from: the cache takes a tenth of the compiler's time. A wrong guess costs only time.
Executable compile_for_cache(const sycl::queue& queue, const Source& source) {
  using Clock = std::chrono::steady_clock;
  constexpr auto kLongestFromCache = std::chrono::milliseconds(400);
  const auto start = Clock::now();
  Executable kernels = compile_source(queue, source);
  return Clock::now() - start < kLongestFromCache ? kernels : compile_source(queue, source);
}

lanes::Widths find_widths(const sycl::device& device) {
  constexpr std::size_t kPreferred = 16;
  const auto sizes = device.get_info<sycl::info::device::sub_group_sizes>();
  const bool has_preferred = std::find(sizes.begin(), sizes.end(), kPreferred) != sizes.end();
  return {
      .lanes = has_preferred ? kPreferred : *std::max_element(sizes.begin(), sizes.end()),
      .span = 8192,
      .largest_group = std::min<std::uint64_t>(4096, device.get_info<sycl::info::device::max_work_group_size>()),
  };
}

}  // namespace

Executable compile(const sycl::queue& queue, const lanes::KernelName& name) {
  const std::string file = lanes::file_of(name);
  const std::string text =
      "#include \"octavo/kernels/lanes/lanes.h\"\n#pragma GCC poison double\n#include \"" + file + "\"\n";
  return compile_for_cache(queue, {text, name.options, file, ErrorCode::internal});
}

sycl::kernel compile_kernel(const sycl::queue& queue, const std::string& source, const std::string& function) {
  Executable kernels = compile_for_cache(queue, {source, "", "the source of " + function, ErrorCode::invalid_argument});
  if (!kernels.ext_oneapi_has_kernel(function)) {
    fail(ErrorCode::invalid_argument, "kernels.sycl", "the source has no kernel ", function,
         " of C linkage: declare it with OCTAVO_KERNEL");
  }
  return kernels.ext_oneapi_get_kernel(function);
}

lanes::Widths widths_of(const sycl::queue& queue) {
  static auto* const known = new std::unordered_map<sycl::device, lanes::Widths>;  // SYCL takes microseconds to answer
  static std::mutex mutex;
  const sycl::device device = queue.get_device();
  const std::lock_guard lock(mutex);
  const auto found = known->find(device);
  return found != known->end() ? found->second : known->emplace(device, find_widths(device)).first->second;
}

}  // namespace octavo::sycl_backend
