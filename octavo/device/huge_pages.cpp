// SPDX-License-Identifier: Apache-2.0
#include "octavo/device/huge_pages.h"

#include <cstdint>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace octavo {

void advise_huge_pages(const at::Tensor& tensor) {
#if defined(__linux__)
  constexpr std::uintptr_t kHugePage = 1U << 21;
  if (!tensor.is_cpu() || tensor.nbytes() < 4 * kHugePage) return;
  const auto start = reinterpret_cast<std::uintptr_t>(tensor.const_data_ptr());
  const std::uintptr_t first = (start + kHugePage - 1) / kHugePage * kHugePage;
  const std::uintptr_t last = (start + tensor.nbytes()) / kHugePage * kHugePage;
  madvise(reinterpret_cast<void*>(first), last - first, MADV_HUGEPAGE);  // advice: its refusal changes nothing
#else
  static_cast<void>(tensor);
#endif
}

}  // namespace octavo
