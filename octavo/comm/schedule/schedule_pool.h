// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/Device.h>

#include <memory>
#include <unordered_map>
#include <vector>

#include "octavo/comm/schedule/schedule.h"
#include "octavo/comm/wire.h"

namespace octavo {

/// The schedules of buckets that are under way at one time, which keep their buffers from bucket to bucket. Not
/// thread-safe.
class SchedulePool {
 public:
  /// `host`: where there are hosts, the ranks of this rank's one, and `wire` those of the same number on all hosts.
  /// `owners_keep_sums`: nothing goes back to the ranks. The wires must outlive this object and its schedules.
  SchedulePool(Wire& wire, Wire* host, bool owners_keep_sums);

  /// Of buckets that are sent encoded, or as they are. Schedules add to seconds() of this object, which outlives them.
  std::unique_ptr<Schedule> take(c10::Device device, bool is_encoded);
  void give_back(std::unique_ptr<Schedule> schedule, c10::Device device, bool is_encoded);

  /// Of all buckets, on the thread that they are worked on.
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
