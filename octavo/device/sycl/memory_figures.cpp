// SPDX-License-Identifier: Apache-2.0
#include "octavo/device/sycl/memory_figures.h"

#include <algorithm>

namespace octavo::sycl_device {

namespace {

template <class Change>
void for_gauges(MemoryFigures& figures, Change change) {
  for (Amount* amount : {&figures.allocated, &figures.reserved, &figures.active}) {
    change(amount->bytes);
    change(amount->blocks);
  }
}

}  // namespace

void Gauge::add(std::int64_t amount) {
  current += amount;
  added += amount;
  peak = std::max(peak, current);
}

void Gauge::remove(std::int64_t amount) {
  current -= amount;
  removed += amount;
}

void Amount::add(std::uint64_t block_bytes) {
  bytes.add(static_cast<std::int64_t>(block_bytes));
  blocks.add(1);
}

void Amount::remove(std::uint64_t block_bytes) {
  bytes.remove(static_cast<std::int64_t>(block_bytes));
  blocks.remove(1);
}

void MemoryFigures::reset_peak() {
  for_gauges(*this, [](Gauge& gauge) { gauge.peak = gauge.current; });
}

void MemoryFigures::reset_sums() {
  for_gauges(*this, [](Gauge& gauge) { gauge.added = gauge.removed = 0; });
  retries = refusals = 0;
}

}  // namespace octavo::sycl_device
