// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/Device.h>

#include <memory>
#include <unordered_map>
#include <vector>

#include "octavo/comm/schedule/schedule.h"
#include "octavo/comm/wire.h"

namespace octavo {

/// The schedules of buckets that are under way at one time. They keep their buffers from bucket to bucket. Not
/// thread-safe.
class SchedulePool {
 public:
  /// `host`: with ranks_per_host the ranks of this rank's host, else null; `wire` are then the ranks of the same number
  /// on all hosts. `owners_keep_sums`: owners send nothing back to the ranks. The wires must outlive this object and
  /// its schedules.
  SchedulePool(Wire& wire, Wire* host, bool owners_keep_sums);

  /// Returns a schedule for buckets that are sent encoded, or as they are. It adds to seconds() of this object, which
  /// must outlive it.
  std::unique_ptr<Schedule> take(c10::Device device, bool is_encoded);
  void give_back(std::unique_ptr<Schedule> schedule, c10::Device device, bool is_encoded);

  /// Returns the seconds of all buckets, on the thread that works on them.
  const PhaseSeconds& seconds() const { return seconds_; }

 private:
  using Idle = std::unordered_map<c10::Device, std::vector<std::unique_ptr<Schedule>>>;
  Idle& idle(bool is_encoded) { return is_encoded ? idle_encoding_ : idle_dense_; }
  std::unique_ptr<Schedule> make(c10::Device device, bool is_encoded);

  Wire& wire_;
  Wire* host_;
  bool owners_keep_sums_;
  PhaseSeconds seconds_;
  Idle idle_encoding_, idle_dense_;
};

}  // namespace octavo
