// SPDX-License-Identifier: Apache-2.0
#include "octavo/kernels/plugin.h"

#include <array>
#include <cctype>
#include <cstddef>
#include <cstdlib>
#include <dlfcn.h>
#include <map>
#include <mutex>
#include <unistd.h>

#include "octavo/kernels/backend.h"
#include "octavo/kernels/fork.h"

namespace octavo {

namespace {

/// Returns the folder of this library, with a slash at its end.
std::string own_folder() {
  Dl_info info;
  if (dladdr(reinterpret_cast<const void*>(&plugin), &info) == 0 || info.dli_fname == nullptr) return "";
  const std::string file = info.dli_fname;
  const auto slash = file.rfind('/');
  return slash == std::string::npos ? "" : file.substr(0, slash + 1);
}

/// Returns the file that the environment names in place of the back end's own; empty where it names none.
std::string file_of_environment(std::string name) {
  for (char& c : name) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  const char* file = std::getenv(("OCTAVO_" + name + "_PLUGIN").c_str());
  return file == nullptr ? "" : file;
}

struct Library {
  void* handle;      // null where it cannot be loaded
  std::string file;  // as messages name it
  std::string reason = {};
};

Library load(const std::string& name) {
  if (const std::string file = file_of_environment(name); !file.empty()) {
    void* handle = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle != nullptr) return {handle, file};
    return {nullptr, file, file + ", which the environment names, cannot be loaded: " + dlerror()};
  }
  const std::string file = "liboctavo_" + name + ".so", beside = own_folder() + file;
  const bool is_beside = access(beside.c_str(), F_OK) == 0;  // if so, the user must know why it does not load
  void* handle = dlopen((is_beside ? beside : file).c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle != nullptr) return {handle, file};
  if (is_beside) return {nullptr, file, file + " cannot be loaded: " + dlerror()};
  return {nullptr, file,
          file + " is not installed (" + dlerror() + "): Octavo was built without it. Install the packages that it " +
              "is built with (for sycl: intel-sycl-rt and intel-opencl-rt), then build Octavo again"};
}

Plugin open(const std::string& name) {
  const auto [library, file, why_not_loaded] = load(name);
  if (library == nullptr) return {nullptr, why_not_loaded};

  const auto abi = reinterpret_cast<std::uint32_t (*)()>(dlsym(library, "octavo_backend_abi"));
  const auto create =
      reinterpret_cast<const KernelTable* (*)(char*, std::size_t)>(dlsym(library, "octavo_backend_create"));
  if (abi == nullptr || create == nullptr) {
    return {nullptr, file + " is not an Octavo back end: its symbols are missing"};
  }
  if (abi() != kPluginAbi) {
    return {nullptr, file + " was built for kernel table " + std::to_string(abi()) + ", this library has " +
                         std::to_string(kPluginAbi) + ": rebuild it"};
  }
  std::array<char, 512> reason{};
  const KernelTable* table = create(reason.data(), reason.size());
  if (table == nullptr) return {nullptr, std::string(reason.data())};
  return {table, file};
}

struct Entry {
  std::once_flag is_opened;
  Plugin plugin = {};
};

/// The plug-ins by name. An entry stays where it is.
struct Entries {
  std::mutex mutex;
  std::map<std::string, Entry> by_name;
};

/// Never destroyed: tensors may outlive every static object.
Entries& all() {
  static auto* const entries = [] {
    hold_over_forks<[]() -> std::mutex& { return all().mutex; }>();
    return new Entries;
  }();
  return *entries;
}

Entry& entry_of(const std::string& name) {
  const std::lock_guard lock(all().mutex);
  return all().by_name[name];
}

}  // namespace

/// Opens without the mutex, because a driver may fork while it begins.
const Plugin& plugin(const std::string& name) {
  Entry& entry = entry_of(name);
  std::call_once(entry.is_opened, [&] { entry.plugin = open(name); });
  return entry.plugin;
}

}  // namespace octavo
