// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "octavo/comm/contribution.h"
#include "octavo/comm/parameter_info.h"
#include "octavo/comm/state/state_store.h"

namespace octavo {

/// What a Compressor sends of some parameters in the place of their gradients. There is one kind at a time: each of
/// share(), keep_own() and keep_updates() ends what was begun before, and begins nothing where it names no parameter.
/// Parameters are given by their index in the ParameterInfos. Not thread-safe. All ranks must make the same calls.
class SentMomenta {
 public:
  enum class Kind {
    none,
    shared,   // beta*momentum + (1-beta)*(gradient*preconditioner), the momentum equal on all ranks: 1-bit Adam
    own,      // the update that a rank's own momentum makes of its gradient: Signum, Distributed Lion
    updates,  // what a rank has changed in the parameter by itself since the last exchange: 0/1 Adam
  };

  struct Momentum {
    at::Tensor mean;            // the mean of preconditioned gradients
    at::Tensor preconditioner;  // what a gradient is multiplied by
  };

  /// The betas of a momentum that a rank keeps of its own gradients (rules/lion.h).
  struct OwnBetas {
    double update_beta;
    double kept_beta;
  };

  /// What a rank makes by itself of a parameter between the steps that are sent (rules/zero_one_adam.h).
  struct OwnUpdate {
    at::Tensor momentum;  // of preconditioned gradients
    at::Tensor update;    // the sum of its updates since the last step that was sent
  };

  /// Some elements of the last result for the largest parameter whose momentum is sent: every `stride`-th in the
  /// order of its memory, in the gradient's dtype, on the CPU.
  struct Sample {
    std::size_t parameter = 0;
    std::uint64_t stride = 1;
    at::Tensor values;  // undefined: there is no such result yet
  };

  /// `state` keeps momenta and updates that are a rank's own; it must outlive this object.
  SentMomenta(std::vector<ParameterInfo> parameters, StateStore& state);

  // Parameters are given by name. Each of these throws Error invalid_argument for an unknown name, a tensor that does
  // not fit its parameter or a beta outside [0, 1), and then changes nothing.
  void share(const std::map<std::string, Momentum>& momenta, double beta);
  void keep_own(const std::vector<std::string>& names, OwnBetas betas);
  void keep_updates(const std::map<std::string, at::Tensor>& preconditioners, double beta);

  Kind kind() const { return kind_; }
  bool any() const { return kind_ != Kind::none; }
  /// Whether the magnitudes of what is sent count, which a vote would lose.
  bool needs_magnitudes() const { return kind_ == Kind::shared || kind_ == Kind::updates; }
  bool sends(std::size_t parameter) const { return substitutes_[parameter].is_sent; }
  /// Whether what is sent of a parameter is what the rank has made of its gradient, in unscaled units.
  bool sends_own(std::size_t parameter) const { return sends(parameter) && kind_ != Kind::shared; }
  /// Whether that is an update that the rank has made since the last exchange.
  bool keeps_updates(std::size_t parameter) const { return sends(parameter) && kind_ == Kind::updates; }

  /// Replaces the gradients, which are `gradient_scale` times the true ones, by what is the rank's own. `values`:
  /// float32; not read where there are no slots.
  void replace_gradients(const at::Tensor& values, std::span<const Slot> slots, float gradient_scale);
  /// Sets what a contribution of the parameter adds to its gradient, and the weights of both.
  void describe(std::size_t parameter, c10::Device device, float gradient_scale, Contribution& contribution) const;
  /// Makes the averages of updates the updates that all ranks have, if the step is finite in the end.
  void keep_averages(const at::Tensor& values, std::span<const Slot> slots);

  /// Says that the state has been loaded. Until the next step nothing of it is dropped: what it has may be of
  /// parameters that are named only when the optimizer's own state is loaded, too.
  void was_loaded() { has_loaded_ = true; }
  void begin_step();
  void take_sample(const at::Tensor& bucket, std::span<const Slot> slots);
  const Sample& sample() const { return sample_; }

  // The following are for Kind::updates.
  /// Sets the step sizes by parameter name; other parameters keep theirs. Throws Error invalid_argument for a parameter
  /// without a preconditioner.
  void set_step_sizes(const std::map<std::string, double>& step_sizes);
  /// Returns the momenta and updates by parameter name, flat, on the devices of the preconditioners.
  std::map<std::string, OwnUpdate> own_updates();
  /// Sets all step sizes to 0, so that the next exchange averages updates as they are.
  void clear_step_sizes();
  /// Returns the parameters of which updates are sent.
  std::vector<std::size_t> updated_parameters() const;
  const at::Tensor& preconditioner(std::size_t parameter) const { return substitutes_[parameter].preconditioner; }

 private:
  struct Substitute {
    bool is_sent = false;
    at::Tensor mean = {}, preconditioner = {};
    double step_size = 0;  // of the next update
  };

  void begin(Kind kind, std::vector<Substitute> substitutes, OwnBetas betas);
  void drop_unsent();
  void choose_sample();
  void require_fits(std::size_t parameter, const at::Tensor& tensor, const char* where) const;
  OwnUpdate own_update(std::size_t parameter);
  void mix_own(const at::Tensor& values, const Slot& slot, float gradient_scale);
  void add_updates(const at::Tensor& values, const Slot& slot, float gradient_scale);

  std::vector<ParameterInfo> parameters_;
  StateStore& state_;
  Kind kind_ = Kind::none;
  std::vector<Substitute> substitutes_;  // by parameter
  OwnBetas betas_ = {};                  // both are equal, except for own momenta
  Sample sample_;
  bool has_loaded_ = false;  // since the last begin_step()
};

}  // namespace octavo
