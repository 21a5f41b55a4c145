// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include "octavo/export.h"

/// libnvrtc.so.13 for machines without CUDA: it compiles device source by the C++ compiler, with device_code.h before
/// it. What it makes in place of a cubin is a shared library that driver.cpp loads.
struct _nvrtcProgram {
  std::string source;
  std::vector<std::pair<std::string, std::string>> headers;  // by the name under which they are included
  std::string log, compiled;
};

namespace octavo::cuda_emulator {

namespace {

namespace fs = std::filesystem;

enum Result : int { kSuccess = 0, kInvalidInput = 3, kInvalidOption = 5, kCompilation = 6 };

constexpr std::array kArchitectures = {75, 80, 90};

/// Options of NVRTC that change nothing here.
const std::set<std::string> kIgnored = {"--std=c++20", "--fmad=false", "--device-as-default-execution-space"};

std::string read(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void write(const fs::path& path, const std::string& text) {
  fs::create_directories(path.parent_path());
  std::ofstream(path, std::ios::binary) << text;
}

/// A folder of one compilation.
class Folder {
 public:
  Folder() {
    std::string name = (fs::temp_directory_path() / "octavo_nvrtc.XXXXXX").string();
    path_ = mkdtemp(name.data());
  }
  ~Folder() { fs::remove_all(path_); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  fs::path operator/(const std::string& name) const { return path_ / name; }

  /// Runs the compiler; what it says is appended to the log.
  bool compile(const std::string& arguments, std::string& log) const {
    const std::string command =
        "cd '" + path_.string() + "' && '" + CXX_COMPILER + "' -std=c++20 " + arguments + " 2> log.txt";
    const bool succeeded = std::system(command.c_str()) == 0;
    log += read(path_ / "log.txt");
    return succeeded;
  }

 private:
  fs::path path_;
};

/// Takes the marks of kernels out of preprocessed source, and appends what the driver looks up of each.
std::string with_calls(std::string source) {
  static const std::regex kernel("OCTAVO_EMULATED_GLOBAL void (\\w+)\\(");
  std::string calls = "\n#define EXPORTED extern \"C\" __attribute__((visibility(\"default\")))\n";
  for (std::sregex_iterator found(source.begin(), source.end(), kernel), end; found != end; ++found) {
    const std::string name = found->str(1), of_kernel = "octavo::cuda_emulator::Signature<decltype(&" + name + ")>::";
    calls += "EXPORTED void " + name + "_call(void** values) { octavo::cuda_emulator::call(" + name + ", values); }\n";
    calls += "EXPORTED unsigned long " + name + "_parameter_count() { return " + of_kernel + "count; }\n";
    calls += "EXPORTED const unsigned long* " + name + "_parameter_bytes() { return " + of_kernel + "bytes; }\n";
  }
  return std::regex_replace(source, std::regex("OCTAVO_EMULATED_GLOBAL"), "") + calls;
}

Result compile(_nvrtcProgram& program, const std::vector<std::string>& options) {
  std::string definitions;
  for (const std::string& option : options) {
    if (option.starts_with("-D")) {
      definitions += " '" + option + "'";
    } else if (option.starts_with("--gpu-architecture=sm_") || option.starts_with("--gpu-architecture=compute_")) {
      const int architecture = std::atoi(option.c_str() + option.rfind('_') + 1);
      if (std::find(kArchitectures.begin(), kArchitectures.end(), architecture) == kArchitectures.end()) {
        return kInvalidOption;
      }
    } else if (!kIgnored.contains(option)) {
      return kInvalidOption;
    }
  }
  const Folder folder;
  for (const auto& [name, text] : program.headers) write(folder / name, text);
  write(folder / "source.cpp", "#include \"tests/cuda/emulator/device_code.h\"\n" + program.source);
  const std::string preprocess = "-E -nostdinc -nostdinc++ -D__global__=OCTAVO_EMULATED_GLOBAL -I. -I'" SOURCE_FOLDER
                                 "'" +
                                 definitions + " source.cpp -o preprocessed.cpp";
  if (!folder.compile(preprocess, program.log)) return kCompilation;
  write(folder / "complete.cpp", with_calls(read(folder / "preprocessed.cpp")));
  const std::string make =
      "-O1 -w -fPIC -shared -fvisibility=hidden -ffp-contract=off -fno-math-errno "
      "-fsanitize=alignment -fsanitize-undefined-trap-on-error "
      "complete.cpp -o compiled.so";
  if (!folder.compile(make, program.log)) return kCompilation;
  const std::string library = read(folder / "compiled.so");
  const std::uint64_t bytes = library.size();
  program.compiled.assign(reinterpret_cast<const char*>(&bytes), sizeof bytes);
  program.compiled += library;
  return kSuccess;
}

}  // namespace

}  // namespace octavo::cuda_emulator

using namespace octavo::cuda_emulator;

extern "C" {

OCTAVO_API int nvrtcVersion(int* major, int* minor) {
  *major = 13;
  *minor = 99;  // of no NVRTC: what is kept of the emulator is not taken for NVRTC's
  return kSuccess;
}

OCTAVO_API int nvrtcGetNumSupportedArchs(int* count) {
  *count = kArchitectures.size();
  return kSuccess;
}

OCTAVO_API int nvrtcGetSupportedArchs(int* architectures) {
  std::copy(kArchitectures.begin(), kArchitectures.end(), architectures);
  return kSuccess;
}

OCTAVO_API int nvrtcCreateProgram(_nvrtcProgram** program, const char* source, const char*, int header_count,
                                  const char* const* headers, const char* const* include_names) {
  *program = new _nvrtcProgram{source, {}, {}, {}};
  for (int i = 0; i < header_count; ++i) (*program)->headers.emplace_back(include_names[i], headers[i]);
  return kSuccess;
}

OCTAVO_API int nvrtcDestroyProgram(_nvrtcProgram** program) {
  delete *program;
  *program = nullptr;
  return kSuccess;
}

OCTAVO_API int nvrtcCompileProgram(_nvrtcProgram* program, int option_count, const char* const* options) {
  return compile(*program, {options, options + option_count});
}

OCTAVO_API int nvrtcGetProgramLogSize(_nvrtcProgram* program, std::size_t* bytes) {
  *bytes = program->log.size() + 1;
  return kSuccess;
}
OCTAVO_API int nvrtcGetProgramLog(_nvrtcProgram* program, char* log) {
  std::memcpy(log, program->log.c_str(), program->log.size() + 1);
  return kSuccess;
}

OCTAVO_API int nvrtcGetCUBINSize(_nvrtcProgram* program, std::size_t* bytes) {
  *bytes = program->compiled.size();
  return kSuccess;
}
OCTAVO_API int nvrtcGetCUBIN(_nvrtcProgram* program, char* cubin) {
  std::memcpy(cubin, program->compiled.data(), program->compiled.size());
  return kSuccess;
}

// There is no PTX: the emulated devices have an architecture that this compiler knows.
OCTAVO_API int nvrtcGetPTXSize(_nvrtcProgram*, std::size_t*) { return kInvalidInput; }
OCTAVO_API int nvrtcGetPTX(_nvrtcProgram*, char*) { return kInvalidInput; }

}  // extern "C"
