// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

namespace octavo {

/// The native handle of a stream: a sycl::queue*, a cudaStream_t.
using Stream = void*;
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
/// Thread-safe. A stream runs what it is given in order, and nothing waits for it but `wait`, `wait_for`, `free` and,
/// of the host stream, `launch`. Devices are numbered from 0. All functions throw Error invalid_argument for a device
/// that is not there, internal for a failure of the driver, with its words.
struct DeviceRuntime {
  int (*device_count)();
  DeviceFacts (*facts)(int device);
  /// Bytes that the device has left; where it cannot tell, those of the machine.
  std::uint64_t (*free_bytes)(int device);

  /// Uninitialized memory at a multiple of `alignment` (a power of two); null where there is none left.
  void* (*allocate)(int device, MemoryKind kind, std::uint64_t bytes, std::uint64_t alignment);
  /// No stream may use the memory any more.
  void (*free)(int device, void* memory);

  /// `is_urgent`: work of the stream goes first, where the device knows priorities.
  Stream (*create_stream)(int device, bool is_urgent);
  /// The stream of calls that are given none, whose kernels read ordinary memory. Throws Error unsupported where no
  /// device does.
  Stream (*host_stream)();
  bool (*is_idle)(Stream);
  void (*wait)(Stream);
  void (*copy)(Stream, void* to, const void* from, std::uint64_t bytes);

  Event (*create_event)();
  void (*destroy_event)(Event);
  void (*record)(Event, Stream);
  bool (*is_done)(Event);                        // true where it was never recorded
  void (*wait_for)(Event);                       // blocks the caller
  void (*block)(Stream, Event);                  // what the stream is given from now on runs after the event
  double (*elapsed_ms)(Event start, Event end);  // both done, of one device

  /// Compiles, which takes seconds, device source of a user's own, of which `function` is a kernel, for the stream's
  /// device; null for ordinary memory. Throws Error invalid_argument with the compiler's first error.
  Kernel (*compile)(Stream, const std::string& source, const std::string& function);
  /// Enqueues `groups` groups of `group_size` items; without a stream it returns when they have run.
  void (*launch)(Stream, Kernel, std::uint64_t groups, std::uint64_t group_size, const KernelArgument* arguments,
                 std::uint64_t argument_count);
};

}  // namespace octavo
