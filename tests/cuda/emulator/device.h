// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "tests/cuda/emulator/abi.h"
#include "tests/fake_device/queue.h"
#include "tests/fake_device/setting.h"

/// The emulated devices. A stream is one of the fake device's queues: a thread that runs commands in order.
struct CUstream_st {
  CUcontext context;
  octavo::fake::CommandQueue queue{std::chrono::microseconds(0)};
};

struct CUevent_st {
  CUcontext context;
  std::mutex mutex;
  std::shared_ptr<octavo::fake::Mark> mark;  // of the latest record
};

/// A device's primary context. It is made with the device and never destroyed.
struct CUctx_st {
  CUdevice device;
  CUstream_st default_stream{this};
  std::atomic<bool> has_failed = false;  // a kernel ended badly: nothing works on the device any more
};

namespace octavo::cuda_emulator {

struct Allocation {
  enum class Kind { device, managed, host } kind;
  CUdevice device;
  std::uint64_t bytes;
};

/// All memory that was allocated. Thread-safe.
class Memory {
 public:
  static Memory& all();

  /// Returns memory at a multiple of 256 bytes, all of whose bytes are 0xCD; 0 where the device has no room. Only
  /// Kind::device takes room.
  CUdeviceptr allocate(Allocation::Kind kind, CUdevice device, std::uint64_t bytes);
  /// Returns false where there is no such allocation of these kinds.
  bool free(CUdeviceptr memory, bool is_host);
  /// Returns the allocation that holds all of these bytes; null where there is none.
  const Allocation* holding(CUdeviceptr memory, std::uint64_t bytes);
  std::uint64_t free_bytes(CUdevice device);

 private:
  std::mutex mutex_;
  static constexpr std::size_t kAlignment = 256;

  std::map<CUdeviceptr, Allocation> live_;
};

/// Returns the devices: two, or OCTAVO_EMULATED_CUDA_DEVICES.
const std::vector<CUctx_st*>& contexts();
std::uint64_t device_bytes();  // 256 MiB, or OCTAVO_EMULATED_CUDA_BYTES

}  // namespace octavo::cuda_emulator
