// SPDX-License-Identifier: Apache-2.0
#include "octavo/device/sycl/memory_figures.h"

#include <algorithm>

namespace octavo::sycl_device {

namespace {

template <class Change>
void for_gauges(MemoryFigures& figures, Change change) {
  for (Gauge* gauge : {&figures.allocated_bytes, &figures.reserved_bytes, &figures.active_bytes,
                       &figures.allocated_blocks, &figures.reserved_blocks, &figures.active_blocks}) {
    change(*gauge);
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

void MemoryFigures::reset_peak() {
  for_gauges(*this, [](Gauge& gauge) { gauge.peak = gauge.current; });
}

void MemoryFigures::reset_sums() {
  for_gauges(*this, [](Gauge& gauge) { gauge.added = gauge.removed = 0; });
  retries = refusals = 0;
}

}  // namespace octavo::sycl_device
