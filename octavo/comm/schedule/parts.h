// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "octavo/codec/codec.h"

namespace octavo {

/// The parts of a bucket's work, by which it is shared out to threads: pieces are cut into parts. The cuts do not
/// depend on the number of threads. The object keeps its memory.
class Parts {
 public:
  struct Part {
    std::uint32_t piece;
    Range range;          // in elements of the piece's own range, whose first element is 0
    std::uint64_t start;  // the number of elements of all parts before it
  };

  /// Sizes of parts on the CPU, in elements: `kSummed`, whose sum stays in L1 or L2, and `kStreamed`, from which on
  /// results go around the caches. On other devices parts are as large as makes the launch of a kernel worth it.
  static constexpr std::uint64_t kSummed = 1U << 14, kStreamed = 1U << 19;

  void clear();
  /// Adds the next piece. `block`: elements that must stay together. `size`: of a part on the CPU.
  void add(c10::Device device, std::uint64_t count, std::uint64_t block, std::uint64_t size);
  /// Calls body(part) for all parts, on all threads; on other devices than the CPU in order. `passes`: how many times
  /// the body goes over a part's elements.
  void for_each(c10::Device device, std::uint64_t passes, const std::function<void(const Part&)>& body) const;

 private:
  std::vector<Part> parts_;
  std::uint32_t pieces_ = 0;
  std::uint64_t elements_ = 0;
};

}  // namespace octavo
