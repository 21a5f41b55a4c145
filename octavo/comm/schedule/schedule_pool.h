// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "octavo/comm/schedule/schedule.h"
#include "octavo/comm/wire.h"

namespace octavo {

/// The schedules of buckets that are under way at one time. They keep their buffers from bucket to bucket, until
/// buckets have become much smaller: the first bucket of a DDP model holds all of its gradients. Not thread-safe.
class SchedulePool {
 public:
  /// `host`: with ranks_per_host the ranks of this rank's host, else null; `wire` are then the ranks of the same number
  /// on all hosts. `owners_keep_sums`: owners send nothing back to the ranks. The wires must outlive this object and
  /// its schedules.
  SchedulePool(Wire& wire, Wire* host, bool owners_keep_sums);

  /// Says that a step begins. Every few steps, all buffers are given up where each bucket since was less than half of
  /// the largest bucket that they may be for.
  void begin_step();
  /// Returns a schedule for a bucket of so many bytes that is sent encoded, or as it is. It adds to seconds() of this
  /// object, which must outlive it.
  std::unique_ptr<Schedule> take(c10::Device device, bool is_encoded, std::uint64_t bucket_bytes);
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
  std::uint64_t steps_ = 0;
  std::uint64_t largest_bytes_ = 0;  // of the buckets for which schedules may have buffers
  std::uint64_t recent_bytes_ = 0;   // of the largest bucket in the last few steps
  Idle idle_encoding_, idle_dense_;
};

}  // namespace octavo
