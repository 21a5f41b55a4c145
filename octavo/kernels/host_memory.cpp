// SPDX-License-Identifier: Apache-2.0
#include "octavo/kernels/host_memory.h"

#include <algorithm>
#include <fstream>
#include <limits>
#include <optional>

#include "octavo/kernels/error.h"

namespace octavo {

namespace {

constexpr std::int64_t kUnlimited = std::numeric_limits<std::int64_t>::max();

/// Returns the number after `name` in a file of `name number` lines; none if there is no such file or line.
std::optional<std::int64_t> field(const std::string& path, const std::string& name) {
  std::ifstream file(path);
  for (std::string word; file >> word;) {
    std::int64_t value = 0;
    if (word == name && file >> value) return value;
    file.clear();
  }
  return std::nullopt;
}

/// Returns the first number of a file; none where the file says "max".
std::optional<std::int64_t> number(const std::string& path) {
  std::ifstream file(path);
  std::int64_t value = 0;
  if (file >> value) return value;
  return std::nullopt;
}

/// Where a version of control groups keeps its figures.
struct ControlGroupFiles {
  std::string folder, limit, usage, reclaimable;
};

const ControlGroupFiles kVersion1 = {"/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes",
                                     "total_inactive_file"};
const ControlGroupFiles kVersion2 = {"/sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"};

const std::string kController = ":memory:";

struct ControlGroup {
  const ControlGroupFiles* files;
  std::string path;
};

/// Returns the group of this process, from a line `hierarchy:controllers:path`. In version 2 it has no controllers.
std::optional<ControlGroup> group_of_process(const std::string& root) {
  std::ifstream file(root + "/proc/self/cgroup");
  std::optional<ControlGroup> found;
  for (std::string line; std::getline(file, line);) {
    const auto found_at = line.find(kController);
    if (found_at != std::string::npos) return ControlGroup{&kVersion1, line.substr(found_at + kController.size())};
    if (line.starts_with("0::")) found = ControlGroup{&kVersion2, line.substr(3)};
  }
  return found;
}

}  // namespace

std::int64_t HostMemory::bytes_in_field(const std::string& path, const std::string& name) const {
  const auto kilobytes = field(root_ + path, name);
  if (!kilobytes) {
    fail(ErrorCode::unsupported, "kernels.host_memory", path, " cannot be read or has no line '", name,
         "': this needs Linux's /proc");
  }
  return *kilobytes * 1024;
}

std::int64_t HostMemory::resident_bytes() const { return bytes_in_field("/proc/self/status", "VmRSS:"); }

std::int64_t HostMemory::peak_resident_bytes() const { return bytes_in_field("/proc/self/status", "VmHWM:"); }

void HostMemory::reset_peak_resident() const {
  std::ofstream file(root_ + "/proc/self/clear_refs");
  file << 5 << std::flush;  // 5: VmHWM becomes VmRSS, and nothing else changes (proc(5))
  if (!file) {
    fail(ErrorCode::unsupported, "kernels.host_memory",
         "writing to /proc/self/clear_refs was refused, so that the peak of resident memory cannot be reset");
  }
}

std::int64_t HostMemory::total_bytes() const {
  return std::min(bytes_in_field("/proc/meminfo", "MemTotal:"), control_group().total_bytes);
}

std::int64_t HostMemory::available_bytes() const {
  return std::min(bytes_in_field("/proc/meminfo", "MemAvailable:"), control_group().available_bytes);
}

/// Returns the tightest limits from the process's group up to the root. In a container the path may be the host's. Then
/// only the last parts of the way up exist, and the mount's own folder is the container's group.
HostMemory::Limit HostMemory::control_group() const {
  Limit tightest{kUnlimited, kUnlimited};
  const auto group = group_of_process(root_);
  if (!group) return tightest;
  for (std::string path = group->path;; path.resize(path.rfind('/'))) {
    while (path.ends_with('/')) path.pop_back();
    const std::string folder = root_ + group->files->folder + path + "/";
    if (const auto limit = number(folder + group->files->limit)) {
      // what is only cached from files is given back before the group runs out
      const std::int64_t used = number(folder + group->files->usage).value_or(0) -
                                field(folder + "memory.stat", group->files->reclaimable).value_or(0);
      tightest.total_bytes = std::min(tightest.total_bytes, *limit);
      tightest.available_bytes = std::min(tightest.available_bytes, std::max<std::int64_t>(*limit - used, 0));
    }
    if (path.rfind('/') == std::string::npos) return tightest;
  }
}

}  // namespace octavo
