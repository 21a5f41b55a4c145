// SPDX-License-Identifier: Apache-2.0
#include "octavo/kernels/cuda/compile.h"

#include <algorithm>
#include <iterator>
#include <sstream>
#include <vector>

#include "octavo/kernels/cuda/compile_cache.h"
#include "octavo/kernels/cuda/devices.h"
#include "octavo/kernels/cuda/driver.h"
#include "octavo/kernels/cuda/standard_headers.h"

namespace octavo::cuda_backend {

namespace {

/// Returns the architectures that NVRTC knows, in ascending order.
std::vector<int> known_architectures() {
  int count = 0;
  nvrtc().nvrtcGetNumSupportedArchs(&count);
  std::vector<int> all(static_cast<std::size_t>(count));
  nvrtc().nvrtcGetSupportedArchs(all.data());
  std::sort(all.begin(), all.end());
  return all;
}

/// What is made for a device: machine code for its own architecture, or PTX for an older one.
struct Target {
  int architecture;
  bool is_machine_code;
  std::string option() const {
    return std::string("--gpu-architecture=") + (is_machine_code ? "sm_" : "compute_") + std::to_string(architecture);
  }
};

Target target_for(int architecture) {
  const std::vector<int> known = known_architectures();
  const auto after = std::upper_bound(known.begin(), known.end(), architecture);
  if (after == known.begin()) {
    fail(ErrorCode::unsupported, "kernels.cuda", "this NVRTC compiles for compute capabilities from ",
         capability(known.empty() ? 0 : known.front()), " on, the device has ", capability(architecture),
         ": install an older nvidia-cuda-nvrtc");
  }
  const int best = *(after - 1);
  return {best, best == architecture};
}

std::vector<std::string> options_for(const lanes::KernelName& name, Target target) {
  // No contraction, because the order of floating-point operations is part of a rule.
  std::vector<std::string> options = lanes::options_of(name.options, kWidths);
  options.insert(options.end(),
                 {target.option(), "--std=c++20", "--fmad=false", "--device-as-default-execution-space"});
  return options;
}

/// Everything that a program is made of.
struct Source {
  std::string text;
  std::vector<lanes::SourceFile> files;
  std::vector<std::string> options;

  /// Returns a text that differs wherever the program may differ.
  std::string identity() const {
    int major = 0, minor = 0;
    nvrtc().nvrtcVersion(&major, &minor);
    std::ostringstream all;
    all << "NVRTC " << major << '.' << minor << " of " << nvrtc().file << '\n' << text;
    for (const std::string& option : options) all << option << '\n';
    for (const lanes::SourceFile& file : files) all << file.name << '\n' << file.text << '\n';
    return all.str();
  }
};

Source source_of(const lanes::KernelName& name, Target target) {
  Source source{"#include \"" + lanes::file_of(name) + "\"\n", lanes::embedded_files, options_for(name, target)};
  source.files.insert(source.files.end(), std::begin(kStandardHeaders), std::end(kStandardHeaders));
  return source;
}

/// A program of NVRTC's.
class Compilation {
 public:
  explicit Compilation(const Source& source) {
    std::vector<const char*> texts, names;
    for (const lanes::SourceFile& file : source.files) {
      texts.push_back(file.text);
      names.push_back(file.name);
    }
    nvrtc().nvrtcCreateProgram(&program_, source.text.c_str(), "octavo.cu", static_cast<int>(texts.size()),
                               texts.data(), names.data());
  }
  ~Compilation() { nvrtc().nvrtcDestroyProgram.result(&program_); }
  Compilation(const Compilation&) = delete;
  Compilation& operator=(const Compilation&) = delete;

  /// Returns whether the source compiles.
  bool run(const std::vector<std::string>& options) {
    std::vector<const char*> views;
    for (const std::string& option : options) views.push_back(option.c_str());
    const int result = nvrtc().nvrtcCompileProgram.result(program_, static_cast<int>(views.size()), views.data());
    if (result != kCompilation && result != kInvalidOption) nvrtc().nvrtcCompileProgram.require(result);
    return result == kSuccess;
  }

  std::string log() const { return text(nvrtc().nvrtcGetProgramLogSize, nvrtc().nvrtcGetProgramLog); }
  std::string machine_code() const { return text(nvrtc().nvrtcGetCUBINSize, nvrtc().nvrtcGetCUBIN); }
  std::string ptx() const { return text(nvrtc().nvrtcGetPTXSize, nvrtc().nvrtcGetPTX); }

 private:
  std::string text(const Function<int(nvrtcProgram, std::size_t*)>& size,
                   const Function<int(nvrtcProgram, char*)>& get) const {
    std::size_t bytes = 0;
    size(program_, &bytes);
    std::string all(bytes, '\0');
    get(program_, all.data());
    return all;
  }

  nvrtcProgram program_ = nullptr;
};

}  // namespace

std::string compile(const lanes::KernelName& name, int architecture) {
  const Target target = target_for(architecture);
  const Source source = source_of(name, target);
  const std::string identity = source.identity();
  if (auto cached = load_compiled(identity)) return *std::move(cached);

  Compilation compilation(source);
  if (!compilation.run(source.options)) {
    fail(ErrorCode::internal, "kernels.cuda", lanes::file_of(name), " does not compile for compute capability ",
         capability(architecture), ": ", lanes::first_error(compilation.log()));
  }
  std::string compiled = target.is_machine_code ? compilation.machine_code() : compilation.ptx();
  save_compiled(identity, compiled);
  return compiled;
}

}  // namespace octavo::cuda_backend
