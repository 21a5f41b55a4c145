// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

namespace octavo {

/// The number of no device: the host's own, ordinary memory.
inline constexpr int kHost = -1;

/// Where work is enqueued: a stream by its native handle (a sycl::queue*, a cudaStream_t), and its device. The handle
/// alone would not do: the default stream of every CUDA device is null. A Queue made by `{}` is the calling thread:
/// memory is ordinary, and a call returns when it has run.
struct Queue {
  void* handle = nullptr;
  int device = kHost;
  bool is_calling_thread() const { return handle == nullptr && device == kHost; }
};

/// An event of a DeviceRuntime; it may be recorded many times.
using Event = void*;

/// A kernel that a DeviceRuntime compiled; it lives as long as the process.
using Kernel = const void*;
/// An argument of a kernel, by value, as it lies in memory.
struct KernelArgument {
  const void* value;
  std::uint64_t bytes;
  bool is_pointer;
};

/// Where memory lies: `device` belongs to the device, `shared` moves to who reads it, `host` is page-locked memory of
/// the host that the device can read.
enum class MemoryKind { device, shared, host };

struct DeviceFacts {
  std::string name, vendor, driver, platform;
  bool is_cpu;
  bool has_fp64, has_fp16;
  bool reads_ordinary_memory;  // kernels may read and write what malloc gave
  std::uint64_t total_bytes;
  std::uint32_t compute_units, largest_group;
};

/// What a back end with devices of its own provides besides kernels: its devices, their memory, streams and events, as
/// plain functions over opaque handles. A device's headers and torch's need not meet in one file: device/ builds a
/// torch device upon this table.
///
/// Thread-safe. A queue runs what it is given in order, on its own device whichever is current, and nothing waits for
/// it but `wait`, `wait_for`, `free` and, of the calling thread, `launch`. Devices are numbered from 0. All functions
/// throw Error invalid_argument for a device that is not there, internal for a failure of the driver, with its words.
struct DeviceRuntime {
  int (*device_count)();
  DeviceFacts (*facts)(int device);
  /// Bytes that the device has left; where it cannot tell, those of the machine.
  std::uint64_t (*free_bytes)(int device);

  /// Uninitialized memory at a multiple of `alignment` (a power of two); null where there is none left.
  void* (*allocate)(int device, MemoryKind kind, std::uint64_t bytes, std::uint64_t alignment);
  /// No queue may use the memory any more.
  void (*free)(int device, void* memory);

  /// Lives as long as the process. `is_urgent`: its work goes first, where the device knows priorities.
  Queue (*create_queue)(int device, bool is_urgent);
  /// The queue behind the calling thread's own calls, of device kHost: its kernels read ordinary memory. Throws Error
  /// unsupported where no device does.
  Queue (*host_queue)();
  bool (*is_idle)(Queue);
  void (*wait)(Queue);
  /// Ordinary memory must stay, and be left alone, until the copy has run.
  void (*copy)(Queue, void* to, const void* from, std::uint64_t bytes);

  Event (*create_event)();
  void (*destroy_event)(Event);
  void (*record)(Event, Queue);
  bool (*is_done)(Event);                        // true where it was never recorded
  void (*wait_for)(Event);                       // blocks the caller
  void (*block)(Queue, Event);                   // what the queue is given from now on runs after the event
  double (*elapsed_ms)(Event start, Event end);  // both done, of one device

  /// Compiles, which takes seconds, device source of a user's own, of which `function` is a kernel, for the queue's
  /// device. Throws Error invalid_argument with the compiler's first error. Null where the back end compiles nothing.
  Kernel (*compile)(Queue, const std::string& source, const std::string& function);
  /// Enqueues `groups` groups of `group_size` items. Null where `compile` is.
  void (*launch)(Queue, Kernel, std::uint64_t groups, std::uint64_t group_size, const KernelArgument* arguments,
                 std::uint64_t argument_count);
};

}  // namespace octavo
