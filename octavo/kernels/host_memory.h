// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "octavo/export.h"

namespace octavo {

/// The memory of this process and of its machine, in bytes, as Linux accounts for it. Throws Error unsupported where
/// the system does not say. Stateless: any thread may call it.
class OCTAVO_API HostMemory {
 public:
  /// `root` is the folder in which /proc and /sys are looked for; tests pass another one.
  explicit HostMemory(std::string root = "") : root_(std::move(root)) {}

  /// The resident pages of this process (VmRSS). Linux counts them to within some 64 pages per thread.
  std::int64_t resident_bytes() const;
  /// The most that was ever resident (VmHWM). The kernel keeps it, so nothing is missed between two calls.
  std::int64_t peak_resident_bytes() const;
  void reset_peak_resident() const;
  /// The RAM, or the limit of the control group that this process is in where that is lower.
  std::int64_t total_bytes() const;
  /// What can be allocated without swapping (MemAvailable), within the control group.
  std::int64_t available_bytes() const;

 private:
  struct Limit {
    std::int64_t total_bytes;
    std::int64_t available_bytes;
  };
  Limit control_group() const;
  /// The file has the number in kB.
  std::int64_t bytes_in_field(const std::string& path, const std::string& name) const;

  std::string root_;
};

}  // namespace octavo
