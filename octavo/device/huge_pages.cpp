// SPDX-License-Identifier: Apache-2.0
#include "octavo/device/huge_pages.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <cstdint>
#include <cstdlib>

#include "octavo/kernels/error.h"
#include "octavo/kernels/round_up.h"

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace octavo {

namespace {

constexpr std::uintptr_t kHugePage = 1U << 21;

#if defined(__linux__)
#if !defined(MADV_COLLAPSE)
#define MADV_COLLAPSE 25  // Linux 6.1; older kernels refuse it
#endif

/// Advises on the huge pages that lie wholly inside the tensor. The kernel's refusal changes nothing.
void advise(const at::Tensor& tensor, int advice) {
  if (!tensor.is_cpu()) return;
  const auto start = reinterpret_cast<std::uintptr_t>(tensor.const_data_ptr());
  const std::uintptr_t first = round_up(start, kHugePage);
  const std::uintptr_t last = (start + tensor.nbytes()) / kHugePage * kHugePage;
  if (first < last) madvise(reinterpret_cast<void*>(first), last - first, advice);
}
#endif

}  // namespace

at::Tensor empty_on_huge_pages(std::uint64_t count, at::ScalarType dtype) {
  const auto size = static_cast<std::int64_t>(count);
  const std::uint64_t bytes = count * at::elementSize(dtype);
  if (bytes < kHugePage) return at::empty({size}, dtype);
  const std::uint64_t whole_pages = round_up(bytes, kHugePage);
  void* memory = std::aligned_alloc(kHugePage, whole_pages);
  if (memory == nullptr) {
    fail(ErrorCode::out_of_memory, "device.huge_pages", whole_pages, " bytes of memory for ", count, " elements of ",
         toString(dtype), " cannot be allocated: the system has no more to give");
  }
  at::Tensor tensor = at::from_blob(memory, {size}, std::free, dtype);
  advise_huge_pages(tensor);
  return tensor;
}

void advise_huge_pages(const at::Tensor& tensor) {
#if defined(__linux__)
  advise(tensor, MADV_HUGEPAGE);
#endif
}

void move_to_huge_pages(const at::Tensor& tensor) {
#if defined(__linux__)
  advise(tensor, MADV_HUGEPAGE);
  advise(tensor, MADV_COLLAPSE);
#endif
}

}  // namespace octavo
