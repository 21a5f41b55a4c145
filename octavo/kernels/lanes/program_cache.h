// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>

#include "octavo/kernels/lanes/device_backend.h"

namespace octavo::lanes {

/// The programs of a back end, each made at its first use on a device. Thread-safe; a call waits only for the program
/// that it asks for. A back end never destroys its cache, so that programs exist as long as the process: the device's
/// own library may be gone before static objects are destroyed.
template <class Device, class Program, class DeviceHash = std::hash<Device>>
class ProgramCache {
 public:
  /// Returns the program of a kernel, at its first use made as Program(make()). What fails is tried again at the next
  /// call: memory may be there then.
  template <class Make>
  Program& get(const KernelName& name, const Device& device, Make make) {
    Slot& slot = slot_of({name.program, name.options, device});
    std::call_once(slot.once, [&] { slot.program.emplace(make()); });
    return *slot.program;
  }

 private:
  struct Key {
    std::string_view program;
    std::string options;
    Device device;
    bool operator==(const Key&) const = default;
  };
  struct KeyHash {
    std::size_t operator()(const Key& key) const {
      return std::hash<std::string_view>()(key.program) ^ std::hash<std::string>()(key.options) << 1 ^
             DeviceHash()(key.device) << 2;
    }
  };
  struct Slot {
    std::once_flag once;
    std::optional<Program> program;
  };

  Slot& slot_of(const Key& key) {
    const std::lock_guard lock(mutex_);
    return slots_[key];
  }

  std::mutex mutex_;
  std::unordered_map<Key, Slot, KeyHash> slots_;
};

}  // namespace octavo::lanes
