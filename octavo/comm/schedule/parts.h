// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "octavo/comm/layout.h"

namespace octavo {

/// How the work on a bucket is shared out to threads: pieces are cut into parts. The cuts do not depend on the number
/// of threads. Keeps its memory.
class Parts {
 public:
  struct Part {
    std::uint32_t piece;
    Range range;          // of the piece's own elements: 0 is the first of its range
    std::uint64_t start;  // elements of all parts before it
  };

  /// Elements of a part on the CPU, some: `kSummed`, whose sum stays in L1 or L2, `kStreamed`, from which on results go
  /// around the caches. Elsewhere parts are as large as is worth the launch of a kernel.
  static constexpr std::uint64_t kSummed = 1U << 14, kStreamed = 1U << 19;

  void clear();
  /// The next piece; `block`: elements that stay together; `size`: of a part on the CPU.
  void add(c10::Device device, std::uint64_t count, std::uint64_t block, std::uint64_t size);
  /// Calls body(part) for all parts, on all threads; elsewhere than on the CPU in order. `passes`: how often the body
  /// goes over a part's elements.
  void for_each(c10::Device device, std::uint64_t passes, const std::function<void(const Part&)>& body) const;

 private:
  std::vector<Part> parts_;
  std::uint32_t pieces_ = 0;
  std::uint64_t elements_ = 0;
};

}  // namespace octavo
