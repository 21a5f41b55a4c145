// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "octavo/device/stream_event.h"
#include "octavo/export.h"

namespace octavo {

/// The index of a device; none is the current one.
using WhichDevice = std::optional<std::int64_t>;

/// What a training loop asks of a device type: devices, random numbers, streams, memory, precisions. The names are
/// those of DeepSpeed's accelerator. Every method has a default that asks torch's own interfaces for the device type,
/// so a subclass overrides what differs and goes on working when a method is added here.
///
/// Any accelerator can be made and asked for its constants anywhere. What needs the device throws Error unsupported
/// with the reason why it is absent, and invalid_argument for an index that it does not have. Memory is in bytes.
/// Methods may be called from any thread; the current device and the current stream are the calling thread's.
class OCTAVO_API Accelerator {
 public:
  /// `name`: as torch spells the device type, also where this torch does not know it.
  Accelerator(c10::DeviceType type, std::string name) : type_(type), name_(std::move(name)) {}
  virtual ~Accelerator() = default;
  Accelerator(const Accelerator&) = delete;
  Accelerator& operator=(const Accelerator&) = delete;

  c10::DeviceType type() const noexcept { return type_; }
  const std::string& name() const noexcept { return name_; }

  // ---- behaviour

  /// Operations are finished when they return.
  virtual bool is_synchronized_device() const { return false; }
  /// Time with the host's clock: events are missing or unreliable.
  virtual bool use_host_timers() const { return is_synchronized_device(); }
  virtual bool resolves_data_dependency() const { return is_synchronized_device(); }
  virtual bool handles_memory_backpressure() const { return is_synchronized_device(); }

  // ---- devices

  virtual bool is_available() const { return device_count() > 0; }
  /// Why is_available() is false; empty where it is true.
  virtual std::string why_absent() const;
  /// The device with its index, initialized. Throws `[device.function]` where it is absent.
  virtual c10::Device require(std::string_view function, WhichDevice index = std::nullopt) const;
  /// Throws `[device.function]` invalid_argument for a device of another type.
  void require_type(std::string_view function, c10::Device device) const;
  /// `name` or `name:index`.
  virtual std::string device_name(WhichDevice index = std::nullopt) const;
  virtual c10::Device device(WhichDevice index = std::nullopt) const;
  virtual std::int64_t device_count() const;
  virtual std::int64_t current_device() const;
  virtual std::string current_device_name() const { return device_name(current_device()); }
  virtual void set_device(std::int64_t index) const;
  /// Waits for all work on all streams of the device.
  virtual void synchronize(WhichDevice index = std::nullopt) const;
  virtual bool on_accelerator(const at::Tensor& tensor) const { return tensor.device().type() == type_; }

  // ---- random numbers

  virtual at::Generator default_generator(WhichDevice index = std::nullopt) const;
  /// uint8[n] on the CPU, a copy.
  virtual at::Tensor get_rng_state(WhichDevice index = std::nullopt) const;
  virtual void set_rng_state(const at::Tensor& state, WhichDevice index = std::nullopt) const;
  virtual void manual_seed(std::uint64_t seed) const;
  virtual void manual_seed_all(std::uint64_t seed) const;
  virtual std::uint64_t initial_seed() const;

  // ---- streams and events

  virtual c10::Stream current_stream(WhichDevice index = std::nullopt) const;
  virtual c10::Stream default_stream(WhichDevice index = std::nullopt) const;
  virtual c10::Stream new_stream(WhichDevice index = std::nullopt, int priority = 0) const;
  /// Makes the stream current on its device and returns the one that was. Throws Error invalid_argument for a stream of
  /// another device type.
  virtual c10::Stream exchange_stream(c10::Stream stream) const;
  virtual std::unique_ptr<StreamEvent> new_event(bool timing) const { return make_event(type_, timing); }

  // ---- memory, in bytes

  virtual void empty_cache() const;
  /// In live tensors.
  virtual std::int64_t memory_allocated(WhichDevice index = std::nullopt) const;
  virtual std::int64_t max_memory_allocated(WhichDevice index = std::nullopt) const;
  /// Taken from the driver: live tensors and the allocator's cache.
  virtual std::int64_t memory_reserved(WhichDevice index = std::nullopt) const;
  virtual std::int64_t max_memory_reserved(WhichDevice index = std::nullopt) const;
  /// All peaks together, as torch's allocators do.
  virtual void reset_peak_memory_stats(WhichDevice index = std::nullopt) const;
  // older names
  virtual std::int64_t memory_cached(WhichDevice index = std::nullopt) const { return memory_reserved(index); }
  virtual std::int64_t max_memory_cached(WhichDevice index = std::nullopt) const { return max_memory_reserved(index); }
  virtual void reset_max_memory_allocated(WhichDevice index = std::nullopt) const { reset_peak_memory_stats(index); }
  virtual void reset_max_memory_cached(WhichDevice index = std::nullopt) const { reset_peak_memory_stats(index); }
  /// torch's keys, `allocated_bytes.all.peak` and so on; bytes and counts.
  virtual std::map<std::string, std::int64_t> memory_stats(WhichDevice index = std::nullopt) const;
  virtual std::int64_t total_memory(WhichDevice index = std::nullopt) const;
  /// What this process could still allocate: free on the device, other processes accounted for, and its own cache; at
  /// most what its live tensors leave of the total, for a system that hands out pages at their first use counts those
  /// not yet used as free.
  virtual std::int64_t available_memory(WhichDevice index = std::nullopt) const;

  /// Zeros on the CPU in page-locked memory that this device's driver knows; see octavo::pinned_zeros.
  virtual at::Tensor pinned_zeros(c10::IntArrayRef shape, at::ScalarType dtype, std::int64_t alignment_bytes = 0) const;

  // ---- precisions and constants

  virtual bool is_bf16_supported() const { return true; }
  virtual bool is_fp16_supported() const { return true; }
  virtual bool is_fp64_supported() const { return true; }
  virtual bool is_triton_supported() const { return false; }
  /// float32 and those of float16 and bfloat16 that are supported.
  virtual std::vector<at::ScalarType> supported_dtypes() const;
  /// The name of c10d's back end.
  virtual std::string communication_backend_name() const { return "gloo"; }
  /// The environment variables that choose which devices a process sees.
  virtual std::vector<std::string> visible_devices_envs() const { return {}; }
  /// Prefixes of environment variables that a launcher hands to other hosts.
  virtual std::vector<std::string> export_envs() const { return {}; }

 private:
  const c10::DeviceType type_;
  const std::string name_;
};

/// "cpu", "cuda", "xpu", "sycl", or any other device type of torch with the defaults above. Throws Error
/// invalid_argument for a name that is no device type.
OCTAVO_API std::unique_ptr<Accelerator> make_accelerator(const std::string& name);

}  // namespace octavo
