// SPDX-License-Identifier: Apache-2.0
#include "octavo/device/pinned.h"

#include <ATen/Context.h>
#include <ATen/core/CachingHostAllocator.h>
#include <ATen/ops/empty.h>
#include <c10/core/Storage.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <memory>
#include <unistd.h>

#include "octavo/device/locked_pages.h"
#include "octavo/device/pinned_regions.h"
#include "octavo/device/tensor_bytes.h"
#include "octavo/kernels/error.h"

namespace octavo {

namespace {

constexpr auto kWhere = "device.pinned";
constexpr std::size_t kWidestElement = 16;  // complex128: the offset of an aligned element must be whole elements

std::size_t checked_alignment(std::int64_t asked) {
  if (asked < 0 || (asked > 0 && !std::has_single_bit(static_cast<std::uint64_t>(asked)))) {
    fail(ErrorCode::invalid_argument, kWhere, "expected an alignment that is a power of two (or 0 for a page), got ",
         asked, " bytes");
  }
  const std::int64_t wanted = asked == 0 ? page_bytes() : asked;
  return std::max(static_cast<std::size_t>(wanted), kWidestElement);
}

std::size_t offset_to(std::size_t alignment, const void* memory) {
  return -reinterpret_cast<std::uintptr_t>(memory) & (alignment - 1);
}

void free_pages(void* context) {
  PinnedRegions::all().remove(context);  // before the addresses can be given to another region
  delete static_cast<LockedPages*>(context);
}

c10::DataPtr lock_pages(std::size_t bytes, std::size_t alignment) {
  auto pages = std::make_unique<LockedPages>(bytes, alignment);
  const auto first = reinterpret_cast<std::uintptr_t>(pages->data());
  PinnedRegions::all().add(pages.get(), {first, first + pages->bytes(), pages->bytes(), pages.get()});
  void* const data = pages->data();
  return {data, pages.release(), free_pages, c10::Device(c10::DeviceType::CPU)};
}

void free_by_driver(void* context) { PinnedRegions::all().remove(context).value().driver_free(context); }

/// Allocates memory of the device's own pinned allocator, with room to reach the alignment. Context and address stay
/// the allocator's: it uses them to find copies in flight, and keeps the memory until they are done.
c10::DataPtr allocate_by_driver(c10::DeviceType type, std::size_t bytes, std::size_t alignment) {
  at::HostAllocator* const allocator = at::getHostAllocator(type);
  if (!allocator) {
    fail(ErrorCode::unsupported, kWhere, "this torch has no pinned memory of ", c10::DeviceTypeName(type, true),
         ": it was built without that device");
  }
  at::globalContext().lazyInitDevice(type);            // before that, torch takes no memory for pinned
  std::size_t room = std::max<std::size_t>(bytes, 1);  // an empty tensor has a region, too
  c10::DataPtr memory = allocator->allocate(room);
  if (offset_to(alignment, memory.get()) != 0) {  // rarely: most allocators start at a page
    room += alignment;
    memory.clear();
    memory = allocator->allocate(room);
  }
  const auto first = reinterpret_cast<std::uintptr_t>(memory.get());
  std::memset(memory.get(), 0, room);  // a cached block holds what was freed before
  PinnedRegions::all().add(memory.get_context(), {first, first + room, room, nullptr, memory.get_deleter()});
  if (!memory.compare_exchange_deleter(memory.get_deleter(), free_by_driver)) {
    fail(ErrorCode::internal, kWhere, "the pinned allocator's deleter changed while it was being replaced");
  }
  return memory;
}

at::Tensor on_memory(c10::DataPtr memory, std::size_t bytes, std::size_t alignment, c10::IntArrayRef shape,
                     at::ScalarType dtype) {
  const std::size_t offset = offset_to(alignment, memory.get());
  const c10::Storage storage(c10::Storage::use_byte_size_t{}, offset + bytes, std::move(memory), nullptr, false);
  const auto first_element = static_cast<std::int64_t>(offset / at::elementSize(dtype));
  return at::empty({0}, dtype).set_(storage, first_element, shape);
}

std::optional<std::pair<void*, PinnedRegion>> region_of(const at::Tensor& tensor) {
  if (!tensor.is_cpu() || !tensor.has_storage()) return std::nullopt;
  const auto first = reinterpret_cast<std::uintptr_t>(tensor.storage().data());
  return PinnedRegions::all().find(first, first + tensor.storage().nbytes());
}

}  // namespace

std::int64_t page_bytes() {
  static const std::int64_t bytes = sysconf(_SC_PAGESIZE);
  return bytes;
}

at::Tensor pinned_zeros(c10::IntArrayRef shape, at::ScalarType dtype, std::int64_t alignment_bytes,
                        c10::DeviceType for_device) {
  const std::size_t alignment = checked_alignment(alignment_bytes);
  const std::size_t bytes = tensor_bytes(shape, dtype, kWhere);
  try {
    c10::DataPtr memory = for_device == c10::DeviceType::CPU ? lock_pages(bytes, alignment)
                                                             : allocate_by_driver(for_device, bytes, alignment);
    return on_memory(std::move(memory), bytes, alignment, shape, dtype);
  } catch (const c10::OutOfMemoryError& refused) {
    fail(ErrorCode::out_of_memory, kWhere, bytes, " bytes of pinned memory for ", for_device,
         " cannot be allocated: ", refused.what_without_backtrace());
  }
}

bool is_pinned(const at::Tensor& tensor) { return region_of(tensor).has_value() || tensor.is_pinned(); }

bool unpin(const at::Tensor& tensor) {
  const auto found = region_of(tensor);
  if (!found || found->second.pages == nullptr) return false;
  if (PinnedRegions::all().remove(found->first)) found->second.pages->unlock();
  return true;
}

std::int64_t pinned_bytes() { return static_cast<std::int64_t>(PinnedRegions::all().locked_bytes()); }

}  // namespace octavo
