// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "octavo/comm/state/state_store.h"
#include "octavo/comm/wire.h"

namespace octavo {

/// Who gets the averages.
enum class Collective {
  all_reduce,  // every rank gets all of them
  /// Each rank gets the part that it owns (ParameterInfo::ownership); a bucket has W equal parts, one for each owner.
  reduce_scatter,
  /// The same for buckets of whole tensors; results stay in their place, the rest of a bucket is undefined.
  reduce_to_owners,
};

/// What ranks exchange in a step.
enum class Exchange {
  planned,    // what the plan and the phase say
  gradients,  // the gradients as they are; the plan, and what it remembers, are not used
  nothing,    // every rank keeps its own gradients
};

/// What a Compressor may be made with beside its parameters and plan.
struct CompressorOptions {
  Collective collective = Collective::all_reduce;
  /// Where the ranks are replicas of one shard of the model: the ranks that hold the other shards.
  std::unique_ptr<Wire> shards = nullptr;
  /// Where gradients are to be compressed only between hosts: the ranks of this rank's host (Hierarchical). The other
  /// ranks are then those that have the same number on their hosts, and what is remembered of each tensor is that of
  /// this rank's range.
  std::unique_ptr<Wire> host = nullptr;
  StatePaging paging = {};  // where state is stored from step to step; ranks may differ
  /// From this, with step, parameter and rank, everything is drawn that a run draws: the rounding of residuals and
  /// codes, the places of randomk, the hashes of sketches, the first factors of powersgd. It must be the same on all
  /// ranks, or the first step throws Error communication.
  std::uint64_t seed = 0;
  /// How many steps of the training an exchange stands for, by which a plan's warm-up counts.
  std::uint64_t steps_per_exchange = 1;
};

/// Everything that a Compressor of the same parameters needs to continue where this one stopped.
struct CompressorState {
  /// By keys such as "worker/NAME" and "momentum/NAME": "ROLE/NAME" of feedback_roles(), kResidual, kMapMemory,
  /// kOwnMomentum and kOwnUpdate. They are on the device where they were last used.
  std::map<std::string, at::Tensor> tensors = {};
  bool of_momenta = false;            // whether the residuals belong to momenta, not to gradients
  std::uint64_t step = 0;             // the same on all ranks, as the seed is
  std::uint64_t seed = 0;             // CompressorOptions
  double usual_factor = 0;            // ClipHistory::usual_factor
  std::uint64_t unclipped_steps = 0;  // ClipHistory::steps
};

}  // namespace octavo
