// SPDX-License-Identifier: Apache-2.0
#include "octavo/rules/lossless.h"

#include "octavo/kernels/backend.h"
#include "octavo/kernels/sycl/table.h"

/// Messages lie in the host's memory, so the host's own processor packs them.
namespace octavo::sycl_backend {

void measure_words(const std::uint16_t* words, std::uint64_t count, rules::WordBlock* blocks) {
  backend("cpu").measure_words(words, count, blocks);
}

void pack_words(const std::uint16_t* words, std::uint64_t count, const rules::WordBlock* blocks, std::uint8_t* packed) {
  backend("cpu").pack_words(words, count, blocks, packed);
}

bool unpack_words(const std::uint8_t* packed, std::uint64_t count, const rules::WordBlock* blocks,
                  std::uint16_t* words) {
  return backend("cpu").unpack_words(packed, count, blocks, words);
}

}  // namespace octavo::sycl_backend
