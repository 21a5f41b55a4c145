// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string_view>
#include <sys/types.h>
#include <unistd.h>
#include <vector>

#include "octavo/kernels/error.h"

/// What the back ends refuse alike. `where` names the back end in the error.
namespace octavo::lanes {

/// Returns a device of a back end's list by its number. Throws Error invalid_argument where there is no such device.
template <class Device>
const Device& listed_device(const std::vector<Device>& devices, int index, std::string_view where) {
  const int count = static_cast<int>(devices.size());
  if (index < 0 || index >= count) {
    fail(ErrorCode::invalid_argument, where, "expected a device from 0 to ", count - 1, ", got ", index);
  }
  return devices[static_cast<std::size_t>(index)];
}

/// Throws Error unsupported in a process that was forked from the one that used the devices first: it lacks the threads
/// that run the device's commands. `library` is what both would use, such as CUDA.
inline void require_not_forked(pid_t first_user, std::string_view library, std::string_view where) {
  if (getpid() == first_user) return;
  fail(ErrorCode::unsupported, where, library, " was used before this process was forked, and cannot be used in ",
       "both: start the process by spawn or forkserver");
}

}  // namespace octavo::lanes
