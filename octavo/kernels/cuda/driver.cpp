// SPDX-License-Identifier: Apache-2.0
#include "octavo/kernels/cuda/driver.h"

#include <dlfcn.h>
#include <filesystem>
#include <sstream>
#include <system_error>
#include <unistd.h>

namespace octavo::cuda_backend {

namespace {

constexpr const char* kWhere = "kernels.cuda";
constexpr const char* kDriverFile = "libcuda.so.1";

/// Returns a symbol of a library. Throws Error unsupported where it has none of this name.
void* symbol_of(void* library, const char* file, const char* name) {
  void* const symbol = dlsym(library, name);
  if (symbol == nullptr) {
    fail(ErrorCode::unsupported, kWhere, file, " has no ", name, ": expected the driver and NVRTC of CUDA 12 or later");
  }
  return symbol;
}

template <class... Parameters>
void find(Function<int(Parameters...)>& function, void* library, const char* file) {
  function.address = reinterpret_cast<int (*)(Parameters...)>(symbol_of(library, file, function.name));
}

/// The driver's library, or why there is none.
struct Library {
  void* handle = dlopen(kDriverFile, RTLD_NOW | RTLD_LOCAL);
  std::string reason = handle == nullptr ? dlerror() : "";
};

const Library& driver_file() {
  static const Library library;
  return library;
}

void* driver_library() { return driver_file().handle; }

Driver open_driver() {
  void* const library = driver_library();
  if (library == nullptr) {
    fail(ErrorCode::unsupported, kWhere,
         "NVIDIA's driver is not installed, or cannot be loaded: ", driver_file().reason);
  }
  Driver all;
#define OCTAVO_FIND(name, ...) find(all.name, library, kDriverFile);
  OCTAVO_CUDA_DRIVER(OCTAVO_FIND)
#undef OCTAVO_FIND
  all.process = getpid();
  if (const int result = all.cuInit.result(0); result != kSuccess) {
    fail(ErrorCode::unsupported, kWhere, "NVIDIA's driver cannot be used: ", words_of_driver(result));
  }
  return all;
}

/// Returns CUDA's newest major version that the driver runs; 13 where there is no driver.
int newest_major() {
  if (driver_library() == nullptr) return 13;
  Function<int(int*)> get_version{"cuDriverGetVersion", words_of_driver};
  find(get_version, driver_library(), kDriverFile);
  int version = 0;
  get_version(&version);  // 12040 is 12.4
  return version / 1000;
}

/// Returns the path, size and time of the file that a function was loaded from.
std::string file_of(const void* function) {
  Dl_info info;
  if (dladdr(function, &info) == 0) return "";
  const std::filesystem::path file = info.dli_fname;
  std::error_code unknown;
  std::ostringstream text;
  text << file << ", " << std::filesystem::file_size(file, unknown) << " bytes, written at "
       << std::filesystem::last_write_time(file, unknown).time_since_epoch().count();
  return text.str();
}

Nvrtc open_nvrtc() {
  constexpr int kOldest = 12;
  const int newest = newest_major();
  if (newest < kOldest) {
    fail(ErrorCode::unsupported, kWhere, "NVIDIA's driver is for CUDA ", newest, ": expected one for CUDA ", kOldest,
         " or later");
  }
  for (int major = newest; major >= kOldest; --major) {
    const std::string file = "libnvrtc.so." + std::to_string(major);
    void* const library = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) continue;
    Nvrtc all;
#define OCTAVO_FIND(name, ...) find(all.name, library, file.c_str());
    OCTAVO_NVRTC(OCTAVO_FIND)
#undef OCTAVO_FIND
    all.file = file_of(reinterpret_cast<const void*>(all.nvrtcVersion.address));
    return all;
  }
  fail(
      ErrorCode::unsupported, kWhere, "CUDA's run-time compiler is not installed: libnvrtc.so.", newest,
      " or one of an older CUDA from 12 on cannot be loaded; the package nvidia-cuda-nvrtc, which torch's CUDA wheels ",
      "bring, has it");
}

}  // namespace

std::string words_of_driver(int result) {
  using Words = int (*)(int, const char**);
  const auto text = [&](const char* function) -> std::string {
    const char* words = nullptr;
    const auto get = reinterpret_cast<Words>(dlsym(driver_library(), function));
    return get != nullptr && get(result, &words) == kSuccess && words != nullptr ? words : "unknown";
  };
  return text("cuGetErrorName") + " (" + text("cuGetErrorString") + ")";
}

std::string words_of_nvrtc(int result) { return "NVRTC's error " + std::to_string(result); }

const Driver& driver() {
  static const Driver opened = open_driver();
  return opened;
}

const Nvrtc& nvrtc() {
  static const Nvrtc opened = open_nvrtc();
  return opened;
}

}  // namespace octavo::cuda_backend
