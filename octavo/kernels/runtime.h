// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

namespace octavo {

/// The device number that stands for no device: the host's own, ordinary memory.
inline constexpr int kHost = -1;

/// Where work is enqueued: the native handle of a stream (a sycl::queue*, a cudaStream_t), and its device. The handle
/// alone is not enough, because the default stream of every CUDA device is null. A Queue made by `{}` is the calling
/// thread: memory is ordinary, and a call returns when it has run.
struct Queue {
  void* handle = nullptr;
  int device = kHost;
  bool is_calling_thread() const { return handle == nullptr && device == kHost; }
};

/// An event of a DeviceRuntime; it may be recorded many times.
using Event = void*;

/// A kernel that a DeviceRuntime compiled; it exists as long as the process.
using Kernel = const void*;
/// An argument of a kernel, passed by value: its bytes as they lie in memory.
struct KernelArgument {
  const void* value;
  std::uint64_t bytes;
  bool is_pointer;
};

/// Where memory lies. `device` memory belongs to the device, `shared` memory moves to whoever reads it, and `host`
/// memory is page-locked memory of the host that the device can read.
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
/// plain functions over opaque handles. Because device/ builds a torch device on this table, no file needs both a
/// device's headers and torch's.
///
/// Thread-safe. A queue runs what it is given in order, on its own device, whichever device is current. Nothing waits
/// for a queue except `wait`, `wait_for`, `free` and, for the calling thread, `launch`. Devices are numbered from 0.
/// All functions throw Error invalid_argument for a device that does not exist, internal for a failure of the driver,
/// with the driver's words.
struct DeviceRuntime {
  int (*device_count)();
  DeviceFacts (*facts)(int device);
  /// Returns the bytes that the device has left or, where it cannot tell, those that the machine has left.
  std::uint64_t (*free_bytes)(int device);

  /// Allocates uninitialized memory at a multiple of `alignment` (a power of two). Returns null where there is none
  /// left.
  void* (*allocate)(int device, MemoryKind kind, std::uint64_t bytes, std::uint64_t alignment);
  /// Frees memory, which no queue may use any more.
  void (*free)(int device, void* memory);

  /// Creates a queue, which exists as long as the process. `is_urgent`: its work goes first, where the device knows
  /// priorities.
  Queue (*create_queue)(int device, bool is_urgent);
  /// Returns the queue behind the calling thread's own calls, of device kHost; its kernels read ordinary memory. Throws
  /// Error unsupported where no device reads ordinary memory.
  Queue (*host_queue)();
  bool (*is_idle)(Queue);
  void (*wait)(Queue);
  /// Enqueues a copy. Ordinary memory must stay allocated and unchanged until the copy has run.
  void (*copy)(Queue, void* to, const void* from, std::uint64_t bytes);

  Event (*create_event)();
  void (*destroy_event)(Event);
  void (*record)(Event, Queue);
  bool (*is_done)(Event);                        // true, too, for an event that was never recorded
  void (*wait_for)(Event);                       // blocks the caller
  void (*block)(Queue, Event);                   // what the queue is given from now on runs after the event
  double (*elapsed_ms)(Event start, Event end);  // both must be done, and of one device

  /// Compiles a user's own device source for the queue's device, which takes seconds; `function` is a kernel of the
  /// source. Throws Error invalid_argument with the compiler's first error. The function pointer is null where the back
  /// end compiles nothing.
  Kernel (*compile)(Queue, const std::string& source, const std::string& function);
  /// Enqueues `groups` groups of `group_size` items. The function pointer is null where that of `compile` is.
  void (*launch)(Queue, Kernel, std::uint64_t groups, std::uint64_t group_size, const KernelArgument* arguments,
                 std::uint64_t argument_count);
};

}  // namespace octavo
