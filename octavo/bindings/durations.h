// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pybind11/pybind11.h>

#include <chrono>
#include <cstdint>

#include "octavo/comm/schedule/schedule.h"

/// Durations between Python, in seconds, and C++.
namespace octavo {

inline std::chrono::milliseconds milliseconds(double seconds) {
  return std::chrono::milliseconds(static_cast<std::int64_t>(seconds * 1000));
}

/// Adds the figures of a handle's stats() that say where the time went.
inline void add_seconds(pybind11::dict& stats, const PhaseSeconds& seconds) {
  stats["encode_s"] = seconds.encode;
  stats["wait_up_s"] = seconds.wait_up;
  stats["reduce_s"] = seconds.reduce;
  stats["wait_down_s"] = seconds.wait_down;
  stats["decode_s"] = seconds.decode;
}

}  // namespace octavo
