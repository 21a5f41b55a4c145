// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "octavo/comm/auto_plan.h"
#include "octavo/comm/measured_loss.h"
#include "octavo/comm/schedule/schedule.h"

/// The figures that a Compressor returns.
namespace octavo {

struct CompressorStats {
  std::uint64_t wire_bytes;   // sent by this rank to others; with ranks_per_host to those of other hosts
  std::uint64_t host_bytes;   // sent to others of this rank's host, with ranks_per_host
  std::uint64_t dense_bytes;  // what a ring would have sent for the same gradients in their own dtype
  std::uint64_t steps;
  std::uint64_t nonfinite_steps;  // steps that were rolled back
  PhaseSeconds seconds;           // of all buckets, on the thread that works on them
  /// The share of values that others were told to reuse, among those sent by codecs that compare values with what was
  /// sent before (CodecTraits::needs_estimate); none where there were no such values.
  std::optional<double> reused_share;
};

/// What `auto` has measured and chosen, with the names of its numbers.
struct AutoStats {
  AutoPlan::Report report;
  std::vector<std::string> plans, parameters;
};

/// What a plan does to one parameter.
struct ParameterStats {
  std::string name;
  std::string plan;     // in force; dense for an exempt parameter
  std::uint64_t count;  // real numbers
  // What this rank sends of it in a step, approximately: for a dense gradient its bytes in float32; where that depends
  // on the values, what it sent in the last step.
  std::uint64_t wire_bytes;
  std::uint64_t dense_bytes;           // what a ring sends for it in float32
  float gradient_rms;                  // in the last step, over all ranks
  float residual_rms;                  // of what this rank still owes, as a sender and as an owner; 0 without feedback
  std::optional<double> reused_share;  // in the last step, as in CompressorStats
  MeasuredLoss loss;                   // of the last step that was measured (Compressor::measure_next_step)
};

}  // namespace octavo
