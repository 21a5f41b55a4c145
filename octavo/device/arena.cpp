// SPDX-License-Identifier: Apache-2.0
#include "octavo/device/arena.h"

#include <ATen/ExpandUtils.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <exception>
#include <map>
#include <mutex>
#include <utility>

#include "octavo/device/dispatch.h"
#include "octavo/device/tensor_bytes.h"
#include "octavo/kernels/error.h"
#include "octavo/kernels/fork.h"

namespace octavo {

namespace {

constexpr const char* kArena = "device.arena";

/// Returns the managed memory of a device's back end. On the CPU it is the host's, whichever back end the kernels come
/// from: all of them read ordinary memory.
const ManagedMemory& managed_memory_of(c10::Device device) {
  if (device.is_cpu()) return host_managed;
  const KernelTable& table = kernels_for(device);
  if (table.managed != nullptr) return *table.managed;
  fail(ErrorCode::unsupported, kArena, "the back end ", table.name, " of ", device.str(), " has no managed memory");
}

/// Returns the device with its index. Where it has no managed memory, throws before torch says that there is no such
/// device.
c10::Device with_index(c10::Device device) {
  managed_memory_of(device);
  if (device.is_cpu()) return c10::kCPU;
  return device.has_index() ? device : c10::impl::VirtualGuardImpl(device.type()).getDevice();
}

/// Waits for all kernels of the device. Returns what a kernel has failed with; empty where none has.
std::string failure_of_kernels(c10::Device device) {
  if (device.is_cpu()) return "";
  try {
    c10::impl::VirtualGuardImpl(device.type()).synchronizeDevice(device.index());
    return "";
  } catch (const std::exception& error) {
    return error.what();
  } catch (...) {
    return "an unknown error";
  }
}

ArenaKind kind_of(const ArenaOptions& options) {
  if (options.directory.empty()) return options.device.is_cpu() ? ArenaKind::host : ArenaKind::managed;
  if (options.device.is_cpu()) return ArenaKind::file;
  fail(ErrorCode::invalid_argument, kArena, "files are for arenas of the CPU: expected no directory for ",
       options.device.str(), ", got '", options.directory, "'");
}

/// All live allocations by address, and the figures of each kind. Callers hold its mutex.
class Allocations {
 public:
  static Allocations& all() {
    static auto* const only = new Allocations;  // tensors may outlive every static object
    return *only;
  }

  std::mutex mutex;  // guards the figures of each arena, too; held over forks, and by nobody while memory is allocated

  void add(const ManagedRange& range, std::uint64_t held) {
    live_.emplace(static_cast<const std::byte*>(range.first), range);
    figures(range.kind).add(range.bytes, held);
  }
  void remove(const void* memory, std::uint64_t held) {
    const auto range = live_.extract(static_cast<const std::byte*>(memory)).mapped();
    figures(range.kind).remove(range.bytes, held);
  }
  std::optional<ManagedRange> find(const void* address) const {
    const auto* const at = static_cast<const std::byte*>(address);
    const auto next = live_.upper_bound(at);
    if (next == live_.begin()) return std::nullopt;
    const auto& [first, range] = *std::prev(next);
    if (at >= first + range.bytes) return std::nullopt;
    return range;
  }
  ArenaFigures& figures(ArenaKind kind) { return figures_.at(static_cast<std::size_t>(kind)); }

 private:
  Allocations() {
    hold_over_forks<[]() -> std::mutex& { return all().mutex; }>();
  }

  std::map<const std::byte*, ManagedRange> live_;
  std::array<ArenaFigures, 3> figures_;
};

/// Calls `body` with all allocations, while nobody else uses them.
template <class Body>
auto locked(const Body& body) {
  Allocations& all = Allocations::all();
  const std::lock_guard lock(all.mutex);
  return body(all);
}

void move_pages(const at::Tensor& tensor, bool to_device) {
  const std::uint64_t bytes = at::detail::computeStorageNbytes(tensor.sizes(), tensor.strides(), tensor.element_size());
  if (bytes == 0 || !is_managed(tensor)) return;
  const LaunchScope scope(tensor.device());
  auto* const memory = const_cast<void*>(tensor.const_data_ptr());
  managed_memory_of(tensor.device()).prefetch(scope.queue(), memory, bytes, to_device);
}

}  // namespace

// ---- figures

void ArenaFigures::add(std::uint64_t asked, std::uint64_t held) {
  asked_bytes += asked;
  held_bytes += held;
  ++tensors;
  peak_asked_bytes = std::max(peak_asked_bytes, asked_bytes);
  peak_held_bytes = std::max(peak_held_bytes, held_bytes);
}

void ArenaFigures::remove(std::uint64_t asked, std::uint64_t held) {
  asked_bytes -= asked;
  held_bytes -= held;
  --tensors;
}

void ArenaFigures::reset_peak() {
  peak_asked_bytes = asked_bytes;
  peak_held_bytes = held_bytes;
}

// ---- arenas

/// Memory of an arena, which its tensor's storage owns.
struct Arena::Allocation {
  std::shared_ptr<Arena> arena;
  void* memory;
  std::uint64_t bytes;
  ~Allocation() { arena->free(memory, bytes); }
  static void release(void* self) { delete static_cast<Allocation*>(self); }
};

Arena::Arena(ArenaOptions options)
    : options_(std::move(options)), kind_(kind_of(options_)), memory_(managed_memory_of(options_.device)) {}

std::shared_ptr<Arena> Arena::make(ArenaOptions options) {
  options.device = with_index(options.device);
  return std::shared_ptr<Arena>(new Arena(std::move(options)));
}

std::shared_ptr<Arena> Arena::of(c10::Device device) {
  static std::mutex mutex;
  static auto* const arenas = new std::map<std::pair<c10::DeviceType, c10::DeviceIndex>, std::shared_ptr<Arena>>;
  const c10::Device at = with_index(device);
  const std::lock_guard lock(mutex);
  std::shared_ptr<Arena>& arena = (*arenas)[{at.type(), at.index()}];
  if (arena == nullptr) arena = make({.device = at});
  return arena;
}

at::Tensor Arena::zeros(at::IntArrayRef shape, at::ScalarType dtype) {
  return make_tensor(shape, c10::contiguous_strides(shape), dtype, /*is_zero=*/true);
}

at::Tensor Arena::empty(at::IntArrayRef shape, at::ScalarType dtype) {
  return make_tensor(shape, c10::contiguous_strides(shape), dtype, /*is_zero=*/false);
}

at::Tensor Arena::zeros_like(const at::Tensor& tensor, at::ScalarType dtype) {
  const bool keeps_strides = tensor.is_non_overlapping_and_dense();
  const auto rows = c10::contiguous_strides(tensor.sizes());
  const at::IntArrayRef strides = keeps_strides ? tensor.strides() : at::IntArrayRef(rows);
  return make_tensor(tensor.sizes(), strides, dtype, /*is_zero=*/true);
}

at::Tensor Arena::make_tensor(at::IntArrayRef shape, at::IntArrayRef strides, at::ScalarType dtype, bool is_zero) {
  const auto options = at::TensorOptions(dtype).device(options_.device);
  const std::uint64_t bytes = tensor_bytes(shape, dtype, kArena);
  if (bytes == 0) return at::empty(shape, options);
  const LaunchScope scope(options_.device);
  void* const memory = allocate(scope.queue(), bytes);
  auto owner = std::make_unique<Allocation>(shared_from_this(), memory, bytes);
  if (is_zero && !memory_.is_zeroed) {
    memory_.fill(scope.queue(), memory, 0, 1, bytes);
    // Evicted at once: the states of all parameters are made before that of any is used.
    memory_.prefetch(scope.queue(), memory, bytes, /*to_device=*/false);
  }
  return at::for_blob(memory, shape)
      .strides(strides)
      .context(owner.release(), &Allocation::release)
      .options(options)
      .target_device(options_.device)
      .make_tensor();
}

void* Arena::allocate(Queue queue, std::uint64_t bytes) {
  const std::uint64_t size = held(bytes);
  reserve(bytes);
  void* memory = nullptr;
  const auto settle = [&] {
    locked([&](Allocations& all) {
      reserved_bytes_ -= size;
      if (memory == nullptr) return;
      figures_.add(bytes, size);
      all.add({memory, bytes, options_.device, kind_}, size);
    });
  };
  try {
    memory = allocate_pages(queue, bytes);
  } catch (...) {
    settle();
    throw;
  }
  settle();
  if (memory == nullptr) refuse(bytes, "the system has no more to give");
  return memory;
}

/// Counts the bytes as reserved. Throws where the arena would hold more than its budget.
void Arena::reserve(std::uint64_t bytes) {
  const std::uint64_t size = held(bytes), budget = options_.budget_bytes;
  const bool fits = locked([&](Allocations&) {
    const std::uint64_t held = figures_.held_bytes + reserved_bytes_;
    if (budget > 0 && (size > budget || held > budget - size)) return false;
    reserved_bytes_ += size;
    return true;
  });
  if (!fits) refuse(bytes, c10::str("the budget is ", budget));
}

void* Arena::allocate_pages(Queue queue, std::uint64_t bytes) const {
  if (kind_ == ArenaKind::file) return memory_.allocate_in_file(queue, options_.directory, bytes);
  return memory_.allocate(queue, bytes);
}

void Arena::free(void* memory, std::uint64_t bytes) noexcept {
  locked([&](Allocations& all) {  // before the addresses can be given to another allocation
    all.remove(memory, held(bytes));
    figures_.remove(bytes, held(bytes));
  });
  // Any stream of the device may use the memory. The wait costs no step: memory is freed when an optimizer is
  // destroyed.
  const std::string failure = failure_of_kernels(options_.device);
  try {
    memory_.free(LaunchScope(options_.device).queue(), memory, bytes);
    if (!failure.empty()) {  // a device tells of it only once
      TORCH_WARN("[", kArena, "] a kernel on ", options_.device, " had failed before memory was freed: ", failure);
    }
  } catch (...) {  // the device is lost, or belongs to the process that this one was forked from
  }
}

std::uint64_t Arena::held(std::uint64_t bytes) const { return whole_pages(bytes, memory_.page_bytes()); }

void Arena::refuse(std::uint64_t bytes, const std::string& why) const {
  const std::string place =
      kind_ == ArenaKind::file ? c10::str("the files in '", options_.directory, "'") : options_.device.str();
  const std::string sentence =
      c10::str(bytes, " bytes (", held(bytes), " in whole pages) of managed memory on ", place,
               " cannot be allocated: this arena holds ", figures().held_bytes, " bytes, ", why);
  if (options_.device.is_cpu()) fail(ErrorCode::out_of_memory, kArena, sentence);
  C10_THROW_ERROR(OutOfMemoryError, c10::str("[", kArena, "] ", sentence));
}

ArenaFigures Arena::figures() const {
  return locked([&](Allocations&) { return figures_; });
}

void Arena::reset_peak() {
  locked([&](Allocations&) { figures_.reset_peak(); });
}

// ---- all arenas

ArenaFigures arena_figures(ArenaKind kind) {
  return locked([&](Allocations& all) { return all.figures(kind); });
}

void reset_arena_peak(ArenaKind kind) {
  locked([&](Allocations& all) { all.figures(kind).reset_peak(); });
}

std::optional<ManagedRange> managed_range(const void* address) {
  return locked([&](const Allocations& all) { return all.find(address); });
}

bool is_managed(const at::Tensor& tensor) {
  return tensor.has_storage() && managed_range(tensor.storage().data()).has_value();
}

void prefetch(const at::Tensor& tensor) { move_pages(tensor, /*to_device=*/true); }

void evict(const at::Tensor& tensor) { move_pages(tensor, /*to_device=*/false); }

}  // namespace octavo
