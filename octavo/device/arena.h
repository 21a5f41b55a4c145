// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "octavo/export.h"
#include "octavo/kernels/managed.h"

/// Tensors in managed memory (kernels/managed.h). For torch such a tensor is on a device, while its pages may lie on
/// the host; or it is on the CPU, while they may lie on a disk. Optimizers keep state in it that is larger than the
/// memory from which it is used.
namespace octavo {

/// Where the pages of an arena go when they are not in use.
enum class ArenaKind {
  managed,  // on a device: to the host
  host,     // on the CPU: to swap space
  file,     // on the CPU: to a file
};

/// A number of tensors and their bytes. Tensors share no pages, so a small tensor holds more bytes than it asked for.
struct OCTAVO_API ArenaFigures {
  std::uint64_t asked_bytes = 0, peak_asked_bytes = 0;
  std::uint64_t held_bytes = 0, peak_held_bytes = 0;
  std::uint64_t tensors = 0;

  void add(std::uint64_t asked, std::uint64_t held);
  void remove(std::uint64_t asked, std::uint64_t held);
  void reset_peak();
};

struct ArenaOptions {
  c10::Device device = c10::kCPU;
  std::string directory = {};      // where the files are made, CPU only; empty: no files
  std::uint64_t budget_bytes = 0;  // the most bytes that may be held; 0: no budget
};

/// Owns managed memory of one device, counts it and limits it. Each tensor has pages of its own, which return to the
/// system when the tensor is freed: nothing is cached. A tensor keeps its arena alive. Thread-safe.
class OCTAVO_API Arena : public std::enable_shared_from_this<Arena> {
 public:
  /// Throws Error invalid_argument for a directory with a device other than the CPU, and Error unsupported where the
  /// device's back end is missing or has no managed memory.
  static std::shared_ptr<Arena> make(ArenaOptions options);
  /// Returns the device's own arena, without a budget and without files. It exists as long as the process.
  static std::shared_ptr<Arena> of(c10::Device device);

  /// Makes a tensor on the arena's device, ready for the work that the device's current stream is given from now on.
  /// Where the budget or the system has no room, throws Error out_of_memory on the CPU and torch's OutOfMemoryError on
  /// a device, and changes nothing. Throws Error invalid_argument where no file can be made in the directory.
  at::Tensor zeros(at::IntArrayRef shape, at::ScalarType dtype);
  at::Tensor empty(at::IntArrayRef shape, at::ScalarType dtype);
  /// Makes zeros in the shape of the tensor, in the order in which the tensor's elements lie in memory where it is
  /// dense, otherwise in row-major order, as buckets and kernels have it.
  at::Tensor zeros_like(const at::Tensor& tensor, at::ScalarType dtype);

  const ArenaOptions& options() const { return options_; }
  ArenaKind kind() const { return kind_; }
  ArenaFigures figures() const;
  void reset_peak();

 private:
  struct Allocation;

  explicit Arena(ArenaOptions options);
  at::Tensor make_tensor(at::IntArrayRef shape, at::IntArrayRef strides, at::ScalarType dtype, bool is_zero);
  void* allocate(Queue queue, std::uint64_t bytes);
  void reserve(std::uint64_t bytes);
  void* allocate_pages(Queue queue, std::uint64_t bytes) const;
  void free(void* memory, std::uint64_t bytes) noexcept;
  std::uint64_t held(std::uint64_t bytes) const;
  [[noreturn]] void refuse(std::uint64_t bytes, const std::string& why) const;

  const ArenaOptions options_;
  const ArenaKind kind_;
  const ManagedMemory& memory_;
  // guarded by the mutex of all arenas
  ArenaFigures figures_;
  std::uint64_t reserved_bytes_ = 0;  // in whole pages, of allocations that are being made
};

/// Returns what all arenas of a kind hold together, on all devices.
OCTAVO_API ArenaFigures arena_figures(ArenaKind kind);
OCTAVO_API void reset_arena_peak(ArenaKind kind);

/// An allocation of an arena.
struct ManagedRange {
  void* first;
  std::uint64_t bytes;  // as the tensor asked for
  c10::Device device;
  ArenaKind kind;
};
/// Returns the live allocation that contains the address; none for other memory.
OCTAVO_API std::optional<ManagedRange> managed_range(const void* address);
OCTAVO_API bool is_managed(const at::Tensor& tensor);

/// Moves the pages of the tensor, which may be a view, to its device (prefetch) or away from it (evict), on the
/// device's current stream. This is advice (ManagedMemory::prefetch). Nothing happens for tensors in other memory.
OCTAVO_API void prefetch(const at::Tensor& tensor);
OCTAVO_API void evict(const at::Tensor& tensor);

}  // namespace octavo
