// SPDX-License-Identifier: Apache-2.0
#include "octavo/comm/schedule/parts.h"

#include <algorithm>
#include <functional>

#include "octavo/codec/codec.h"
#include "octavo/device/dispatch.h"

namespace octavo {

void Parts::clear() {
  parts_.clear();
  pieces_ = 0;
  elements_ = 0;
}

void Parts::add(c10::Device device, std::uint64_t count, std::uint64_t block, std::uint64_t size) {
  constexpr std::uint64_t kLaunched = 1U << 22;
  const std::uint64_t wanted = device.is_cpu() ? size : kLaunched;
  const std::uint64_t step = block * std::max<std::uint64_t>(1, wanted / block);
  for (std::uint64_t first = 0; first < count; first += step) {
    parts_.push_back({pieces_, {first, std::min(step, count - first)}, elements_});
    elements_ += parts_.back().range.count;
  }
  ++pieces_;
}

void Parts::for_each(c10::Device device, std::uint64_t passes, const std::function<void(const Part&)>& body) const {
  const auto grain = static_cast<std::int64_t>(std::max<std::uint64_t>(1, kGrainValues / passes));
  for_parts(device, static_cast<std::int64_t>(elements_), grain, [&](std::int64_t from, std::int64_t to) {
    // a part belongs to the thread that has its middle; by its start, the first threads would get more parts
    const auto lies_before = [](const Part& part, std::int64_t element) {
      return static_cast<std::int64_t>(part.start + part.range.count / 2) < element;
    };
    const auto first = std::lower_bound(parts_.begin(), parts_.end(), from, lies_before);
    const auto last = std::lower_bound(first, parts_.end(), to, lies_before);
    std::for_each(first, last, std::cref(body));
  });
}

}  // namespace octavo
