// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "octavo/comm/feedback/residual.h"
#include "octavo/comm/plan.h"
#include "octavo/comm/schedule/two_phase.h"
#include "octavo/comm/wire.h"
#include "octavo/export.h"

namespace octavo {

struct ParameterInfo {
  std::string name;
  std::uint64_t count;
  bool exempt;  // crosses the wire in float32
};

/// Where a parameter's gradient lies in a bucket.
struct Slot {
  std::size_t parameter;  // index into the ParameterInfos
  std::uint64_t offset;   // in elements
};

struct CompressorStats {
  std::uint64_t wire_bytes;   // sent by this rank to others
  std::uint64_t dense_bytes;  // what a float32 ring all-reduce would have sent
  std::uint64_t steps;
  std::uint64_t nonfinite_steps;  // rolled back
  PhaseSeconds seconds;           // of the two-phase schedule, on its own thread
};

/// Averages gradients over the ranks by a plan, and keeps what must be remembered from step to step, by parameter.
///
/// A step is all the buckets between two begin_step(): a NaN or an infinity anywhere in it makes all of its residuals
/// stay as they were. Thread-safe; the steps of jobs must come in the same order on all ranks.
class OCTAVO_API Compressor {
 public:
  Compressor(std::unique_ptr<Wire> wire, Plan plan, std::vector<ParameterInfo> parameters);
  ~Compressor();

  /// Ends the previous step (commits or rolls back its residuals) and begins one.
  void begin_step();
  /// Ends a step that was broken off: its residuals are rolled back.
  void abandon_step();

  /// A bucket of gradients (any real floating dtype, dense or sparse) on its way to be replaced by the average over all
  /// ranks; while momenta are set, by that of beta*momentum + (1-beta)*(gradient*preconditioner). Its device's kernels
  /// do the work, on the current stream; the residuals are kept on the device.
  class Job {
    friend class Compressor;
    at::Tensor bucket;
    at::Tensor values;  // the bucket in float32
    std::vector<Slot> slots;
    std::unique_ptr<TwoPhase> two_phase;  // null: the bucket is done
  };
  /// Encodes and sends the bucket; send_down() and finish() then complete it. Several jobs may be under way. Throws
  /// Error unsupported for a device without kernels.
  std::unique_ptr<Job> send_up(at::Tensor bucket, std::vector<Slot> slots);
  void send_down(Job& job);
  void finish(std::unique_ptr<Job> job);
  /// All three.
  void reduce(at::Tensor bucket, std::vector<Slot> slots);

  Plan plan() const;
  /// From the next step on. Residuals are kept from one plan with feedback to another, dropped without.
  void set_plan(const Plan& plan);

  struct Momentum {
    at::Tensor mean;            // of preconditioned gradients
    at::Tensor preconditioner;  // what a gradient is multiplied by
  };
  /// Begins (or, with no momenta, ends) the momentum phase of 1-bit Adam. `momenta`: by parameter name, float32 on the
  /// parameter's device, equal on all ranks, in the memory order of the parameter; shared, not copied: their owner
  /// updates them between steps. A parameter without one goes on with its gradient. Residuals are kept: call
  /// drop_residuals() where gradients become momenta, which are of another size. Throws Error invalid_argument for an
  /// unknown name, a wrong size or a plan that votes.
  void set_momentum(std::map<std::string, Momentum> momenta, double beta);

  void drop_residuals();

  /// The mean square of each parameter's gradient in the last step, averaged over ranks (Outcome::power), in the order
  /// of the ParameterInfos; the same on all ranks. 0 with plan dense, which needs none.
  std::vector<float> gradient_powers() const;

  CompressorStats stats() const;

  /// Residuals by key, "worker/NAME" and "owner/NAME", where they were last used. The tensors are this object's own:
  /// copy them before the next step.
  std::map<std::string, at::Tensor> residuals();
  /// Throws Error invalid_argument for a key or a size that this model does not have; the state is then unchanged.
  void load_residuals(const std::map<std::string, at::Tensor>& residuals);

  int rank() const { return wire_->rank(); }
  int world_size() const { return wire_->world_size(); }

 private:
  struct Parameter {
    ParameterInfo info;
    Residual worker, owner;
    Momentum momentum;
    bool pending = false;  // its residuals belong to the step at hand, which is not settled
    float power = 0;
  };

  void settle();
  void reduce_dense(at::Tensor& bucket);
  std::unique_ptr<TwoPhase> take_idle(c10::Device device);
  Contribution contribution(Parameter& parameter, float* values, c10::Device device);
  void clear_residuals();
  std::size_t find(const std::string& name, const char* where) const;

  mutable std::mutex mutex_;
  std::unique_ptr<Wire> wire_;
  PhaseSeconds seconds_;
  std::vector<std::unique_ptr<TwoPhase>> idle_;  // keep their buffers from job to job
  Plan plan_;
  std::vector<Parameter> parameters_;
  bool in_momentum_phase_ = false;
  double beta_ = 0;
  bool step_is_finite_ = true;
  std::uint64_t dense_bytes_ = 0, steps_ = 0, nonfinite_steps_ = 0;
};

}  // namespace octavo
