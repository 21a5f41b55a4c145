// SPDX-License-Identifier: Apache-2.0
#include "octavo/kernels/managed_c.h"

#include <bit>
#include <cstdint>
#include <exception>
#include <iterator>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "octavo/kernels/backend.h"
#include "octavo/kernels/error.h"
#include "octavo/kernels/managed.h"

namespace octavo {

namespace {

constexpr const char* kWhere = "kernels.managed";

thread_local std::string last_error;

const KernelTable& default_table() {
  for (const char* name : {"cuda", "sycl"}) {
    if (backend_status(name).available && backend(name).managed != nullptr) return backend(name);
  }
  return backend("cpu");
}

/// The default device, a queue of its own, and what was allocated on the device. It exists as long as the process.
class DefaultDevice {
 public:
  static DefaultDevice& instance() {
    static auto* const only = new DefaultDevice;
    return *only;
  }

  void* allocate(std::size_t bytes) {
    void* memory = bytes == 0 ? nullptr : managed_.allocate(queue_, bytes);
    if (memory == nullptr) {
      fail(ErrorCode::out_of_memory, kWhere, bytes, " bytes of managed memory cannot be allocated: ",
           bytes == 0 ? "expected at least 1" : "the system has no more to give");
    }
    const std::lock_guard lock(mutex_);
    bytes_[memory] = bytes;
    return memory;
  }

  void free(void* memory) {
    if (memory == nullptr) return;
    auto entry = take_out(memory);  // first: another thread may be given the same memory as soon as it is free
    try {
      wait();
      managed_.free(queue_, memory, entry.mapped());
    } catch (...) {
      const std::lock_guard lock(mutex_);
      bytes_.insert(std::move(entry));
      throw;
    }
  }

  void prefetch(void* memory, std::size_t bytes, int device) {
    require_device(device);
    if (bytes == 0) return;
    require_memory(memory, bytes);
    managed_.prefetch(queue_, memory, bytes, /*to_device=*/device >= 0);
  }

  void fill(void* memory, std::uint32_t pattern, unsigned width, long count) {
    if (count < 0) fail(ErrorCode::invalid_argument, kWhere, "expected a count of at least 0, got ", count);
    if (count == 0) return;
    std::uint64_t bytes = 0;
    if (__builtin_mul_overflow(static_cast<std::uint64_t>(count), std::uint64_t{width}, &bytes)) bytes = UINT64_MAX;
    require_memory(memory, bytes);
    managed_.fill(queue_, memory, pattern, width, static_cast<std::uint64_t>(count));
    wait();
  }

 private:
  DefaultDevice()
      : table_(default_table()),
        managed_(*table_.managed),
        queue_(table_.runtime == nullptr ? Queue{} : table_.runtime->create_queue(0, /*is_urgent=*/false)) {}

  void wait() const {
    if (table_.runtime != nullptr) table_.runtime->wait(queue_);
  }

  /// Throws unless the device is the first one or the host: memory was allocated for the first device, and the CPU
  /// counts as one.
  static void require_device(int device) {
    if (device <= 0) return;
    fail(ErrorCode::invalid_argument, kWhere, "expected device 0, whose memory cget_managed_ptr gives, or -1 for the ",
         "host, got ", device);
  }

  /// Throws for null, and for bytes that begin in memory of cget_managed_ptr and do not end there.
  void require_memory(const void* memory, std::uint64_t bytes) {
    if (memory == nullptr) fail(ErrorCode::invalid_argument, kWhere, "expected memory of cget_managed_ptr, got null");
    const std::lock_guard lock(mutex_);
    const auto after = bytes_.upper_bound(memory);
    if (after == bytes_.begin()) return;
    const auto& [begin, size] = *std::prev(after);
    const auto offset = static_cast<std::uint64_t>(static_cast<const char*>(memory) - static_cast<const char*>(begin));
    if (offset >= size || bytes <= size - offset) return;
    fail(ErrorCode::invalid_argument, kWhere, "expected at most ", size - offset, " bytes from there on, got ", bytes);
  }

  std::map<const void*, std::size_t>::node_type take_out(void* memory) {
    const std::lock_guard lock(mutex_);
    auto entry = bytes_.extract(memory);
    if (!entry.empty()) return entry;
    fail(ErrorCode::invalid_argument, kWhere, "expected a pointer that cget_managed_ptr gave, got another");
  }

  const KernelTable& table_;
  const ManagedMemory& managed_;
  const Queue queue_;
  std::mutex mutex_;
  std::map<const void*, std::size_t> bytes_;
};

/// Runs `body` with the default device; what it throws becomes the thread's last error.
template <class Body>
void call(Body body) noexcept {
  last_error.clear();
  try {
    body(DefaultDevice::instance());
  } catch (const std::exception& error) {
    last_error = error.what();
  }
}

}  // namespace

}  // namespace octavo

extern "C" {

void* cget_managed_ptr(std::size_t bytes) {
  void* memory = nullptr;
  octavo::call([&](octavo::DefaultDevice& device) { memory = device.allocate(bytes); });
  return memory;
}

void cfree_managed_ptr(void* memory) {
  octavo::call([&](octavo::DefaultDevice& device) { device.free(memory); });
}

void cprefetch(void* memory, std::size_t bytes, int device) {
  octavo::call([&](octavo::DefaultDevice& all) { all.prefetch(memory, bytes, device); });
}

void cfill_fp32(float* A, float*, float value, long n) {
  const auto pattern = std::bit_cast<std::uint32_t>(value);
  octavo::call([&](octavo::DefaultDevice& device) { device.fill(A, pattern, sizeof value, n); });
}

void cfill_uint8(unsigned char* A, unsigned char*, unsigned char value, long n) {
  octavo::call([&](octavo::DefaultDevice& device) { device.fill(A, value, sizeof value, n); });
}

const char* octavo_last_error() { return octavo::last_error.c_str(); }

}  // extern "C"
