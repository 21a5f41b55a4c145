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
  /// The bytes of a bucket, and of the longest messages that ranks may send of it: between all ranks or hosts, and
  /// between the ranks of a host.
  struct Sizes {
    std::uint64_t bucket = 0, message = 0, message_in_host = 0;
    void grow_to(const Sizes& other);
  };

  /// `host`: with ranks_per_host the ranks of this rank's host, else null; `wire` are then the ranks of the same number
  /// on all hosts. `owners_keep_sums`: owners send nothing back to the ranks. The wires must outlive this object and
  /// its schedules.
  SchedulePool(Wire& wire, Wire* host, bool owners_keep_sums);

  /// Says that a step begins. Every few steps, buffers are given up that are too large for all buckets since.
  void begin_step();
  /// Says how large the next bucket is, and tells the wires.
  void expect(const Sizes& bucket);
  /// Returns a schedule for buckets that are sent encoded, or as they are. It adds to seconds() of this object, which
  /// must outlive it.
  std::unique_ptr<Schedule> take(c10::Device device, bool is_encoded);
  void give_back(std::unique_ptr<Schedule> schedule, c10::Device device, bool is_encoded);

  /// Returns the seconds of all buckets, on the thread that works on them.
  const PhaseSeconds& seconds() const { return seconds_; }

 private:
  using Idle = std::unordered_map<c10::Device, std::vector<std::unique_ptr<Schedule>>>;
  Idle& idle(bool is_encoded) { return is_encoded ? idle_encoding_ : idle_dense_; }
  void tell_wires();
  std::unique_ptr<Schedule> make(c10::Device device, bool is_encoded);

  Wire& wire_;
  Wire* host_;
  bool owners_keep_sums_;
  PhaseSeconds seconds_;
  std::uint64_t steps_ = 0;
  Sizes largest_;  // of all buckets for which schedules may have buffers
  Sizes recent_;   // the largest of some steps
  Idle idle_encoding_, idle_dense_;
};

}  // namespace octavo
