// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "octavo/comm/serial_queue.h"
#include "octavo/device/side_streams.h"
#include "octavo/export.h"
#include "octavo/outer/fragment.h"

namespace octavo {

inline constexpr const char* kOuterWhere = "outer.Outer";  // the place in its errors

/// When and how ranks bring their values together again.
struct OuterOptions {
  std::uint64_t every = 20;     // steps from one round of a fragment to the next
  std::uint64_t delay = 0;      // steps from the sending of a round to its arrival, while ranks continue; below `every`
  std::uint64_t fragments = 1;  // parts of the model, exchanged at equal intervals; at most `every`
  double lr = 1.0, momentum = 0.3;
  double mix = 0;  // the share of its own values that a rank keeps when a round arrives; below 1
  /// Whether ranks move along the momentum in equal parts, after each of the `every` steps, in place of the anchor at
  /// once, by Nesterov's method, at the end of a round. Their gradients then correct on the way where it overshoots.
  /// Needs a mix of 0. In parameters of 16 bits, parts of less than half of a unit in the last place are lost.
  /// Parts that come after a round was sent, within `delay`, do not count.
  bool spread = false;

  /// Whether there is a momentum to keep; with `spread` also where it is 0, because it may depend on the ranks.
  bool has_momentum() const { return momentum > 0 || spread; }
};

struct OuterStats {
  std::uint64_t wire_bytes;      // sent by this rank for rounds that have arrived
  std::uint64_t dense_bytes;     // what rings would have sent for a gradient in each step
  std::uint64_t steps;           // of this object, as are all other figures
  std::uint64_t rounds;          // exchanged rounds of all fragments
  std::uint64_t skipped_rounds;  // rounds in which some rank had a NaN or an infinity
  double waited_s;               // the time that after_step() and synchronize() waited for rounds
  PhaseSeconds seconds;          // of the exchanges of these rounds
};

/// The outer loop of DiLoCo (Douillard et al. 2023) and Streaming DiLoCo (2025). Ranks make steps of their own. In a
/// round they exchange how far each has moved from the anchor, which is the same on all ranks, compressed by a plan.
/// The outer optimizer, by default Nesterov's, moves the anchor along the mean, and the ranks continue from there.
///
/// A fragment's round arrives at step (f+1)/fragments * every, counted from 1, and every `every` steps after that. It
/// is sent `delay` steps before it arrives, by a thread of its own. A round is a transaction: where a value of any rank
/// is not finite, anchor, momentum and residuals stay as they were on all ranks, and a rank that has such values itself
/// returns to the starts of all fragments (Fragment). Not thread-safe. All ranks make the same calls in the same order.
class OCTAVO_API Outer {
 public:
  /// `backend`: for this object only, of the ranks, all of which make their object together. The values of parameters
  /// must be the same on all ranks: they are the first anchor. Throws Error communication where ranks differ in the
  /// options, the plan, the seed or the parameters' names and sizes, Error invalid_argument for options, parameters or
  /// a plan that make no sense, and Error unsupported for a device without kernels.
  Outer(const c10::intrusive_ptr<c10d::Backend>& backend, std::chrono::milliseconds timeout, const Plan& plan,
        std::vector<OuterParameter> parameters, const OuterOptions& options, std::uint64_t seed = 0);
  ~Outer();

  /// Throws what the constructor throws, for a caller that has something to do before construction.
  static void require(const Plan& plan, const std::vector<OuterParameter>& parameters, const OuterOptions& options);
  /// Checks what can be known of a plan without a model.
  static void require_plan(const Plan& plan, double mix = 0);

  /// A round that all ranks have skipped.
  struct Skipped {
    std::uint64_t fragment, round;
    std::vector<int> ranks;  // those that had a NaN or an infinity; none where sums overflowed
    bool returned_to_start;  // whether this rank did so
  };
  /// To be called after each of the rank's own steps. Throws what Wire throws, Error communication where ranks are in
  /// other rounds, and what Fragment throws for a parameter that was laid out anew or has left its range. After that
  /// every call throws the same: make a new object from saved states, which connects the ranks again.
  std::vector<Skipped> after_step();
  /// Ends the rounds under way and makes one round of all fragments at once. Parameters are then the anchor on all
  /// ranks, also where a round was skipped. It does not change the number of steps. Ranks may have made different
  /// numbers of steps since they sent their last round. Throws as after_step() does.
  std::vector<Skipped> synchronize();

  /// Waits until the rounds under way have been exchanged. They still arrive at their own steps.
  void wait();

  /// Returns the number of this rank's own steps.
  std::uint64_t steps() const { return steps_; }
  OuterStats stats() const;

  /// Returns copies of the anchor in each parameter's shape and memory order, float32, by name.
  std::map<std::string, at::Tensor> anchors() const;

  /// Return copies of what is kept from step to step, except the parameters themselves. shared_state(), the same on all
  /// ranks: "anchor/NAME", "momentum/NAME" and "arrived/NAME" (means that wait for their step), in the parameter's
  /// shape, float32. own_state(), of each rank its own: "fragment F/worker/NAME" and so on (Compressor::state).
  /// Both wait for rounds under way.
  std::map<std::string, at::Tensor> shared_state();
  std::map<std::string, at::Tensor> own_state();
  /// What waits for its step: nothing, the means of a round, or a round that was not finite. The numbers are in saved
  /// states.
  enum class Waiting : std::uint64_t { nothing = 0, means = 1, not_finite = 2 };
  /// For each fragment: the number of its rounds; what waits for its step, and the bytes that its round sent; whether
  /// no step was made since a round arrived; whether ranks began at the anchor; how far they have drifted.
  struct Position {
    std::uint64_t rounds;
    Waiting waiting;
    std::uint64_t wire_bytes;
    bool is_at_start, starts_at_anchor;
    Fragment::Drifted drifted;
  };
  std::vector<Position> positions();
  /// Restores what the two states, merged, and positions() were on this rank, in a world of as many ranks, after
  /// `steps` steps. Throws Error invalid_argument where something does not fit; nothing has changed then.
  void load(const std::map<std::string, at::Tensor>& tensors, const std::vector<Position>& positions,
            std::uint64_t steps);
  /// Loads what all ranks of another world saved, by rank; residuals are redistributed over this world. `rank`: this
  /// rank's number in that world, if it keeps that rank's parameters. Returns corrections by parameter name, float32,
  /// in the parameter's shape and memory order. The caller adds them to those parameters: they remove what the rank
  /// still owed. A lone rank sends nothing, so it can owe nothing: its own debt stays in its parameters, as progress,
  /// or, where the parameters are the anchor's, the corrections add the debt of all ranks. A rank without parameters of
  /// that world calls begin_at_start() first.
  std::map<std::string, at::Tensor> load_world(const std::vector<std::map<std::string, at::Tensor>>& world,
                                               const std::vector<Position>& positions, std::uint64_t steps,
                                               std::optional<int> rank);
  /// Sets this rank's parameters to where they would be if it had made no steps of its own since the last rounds.
  void begin_at_start();

 private:
  /// How an exchange ended, the same on all ranks.
  struct Arrival {
    bool finite = true;
    std::vector<int> culprits = {};
    std::uint64_t wire_bytes = 0;
    PhaseSeconds seconds = {};
    double drifted = 0;  // Agreed::drifted
  };
  /// A fragment and its last round, which is being exchanged (`in_exchange`), waits for its step (`arrived`), or
  /// neither.
  struct Round {
    std::unique_ptr<Fragment> fragment;
    std::optional<std::future<Arrival>> in_exchange;
    std::optional<Arrival> arrived;
    bool is_at_start = false;  // this rank has made no step since the round arrived
  };
  using Tensors = std::map<std::string, at::Tensor>;

  bool arrives(std::size_t fragment, std::uint64_t step) const;
  void send(std::size_t index, std::uint64_t mark);
  Arrival exchange(std::size_t index, std::uint64_t mark);
  /// What ranks agree on before an exchange.
  struct Agreed {
    bool any_has_progress;
    double drifted;  // Fragment::Drifted::sent, the mean over ranks
  };
  Agreed agree_on_round(std::size_t index, std::uint64_t mark, bool has_progress);
  std::vector<int> ranks_with_nonfinite(bool finite);
  void wait_for(Round& round);
  void arrive(std::size_t index, double own_share, std::vector<Skipped>& skipped);
  bool return_to_start();
  void throw_if_failed();
  template <class Body>
  void or_fail_for_good(const Body& body);
  void gather(Tensors& into, const std::string& role, const Fragment::Views& views) const;
  void require_fits(const Tensors& tensors, const std::vector<Position>& positions) const;
  using LoadState = std::function<void(std::size_t fragment, Compressor& compressor, CompressorState state)>;
  void load_with(const Tensors& tensors, const std::vector<Position>& positions, std::uint64_t steps,
                 const LoadState& load_state);
  void restore(const Tensors& tensors, const std::vector<Position>& positions, std::uint64_t steps);
  void scatter(const Tensors& from, const std::string& role, const Fragment::Views& views) const;
  Tensors take_over_owed(const std::vector<Tensors>& world, const std::vector<Position>& positions, bool has_values);
  bool subtract_owed(Tensors& from, const std::vector<Tensors>& world, std::size_t fragment) const;
  void gather_owed(Tensors& into, const std::vector<Tensors>& world, std::size_t fragment, std::size_t rank) const;
  Tensors owed_in_values(const std::vector<Tensors>& world, const std::vector<Position>& positions, int rank) const;

  std::vector<OuterParameter> parameters_;
  OuterOptions options_;
  Wire wire_;  // for what is told beside the rounds
  std::vector<Round> rounds_;
  SideStreams streams_;
  std::uint64_t steps_ = 0, steps_here_ = 0, rounds_here_ = 0, skipped_ = 0;
  std::uint64_t wire_bytes_ = 0;
  PhaseSeconds seconds_;
  double waited_s_ = 0;
  std::mutex failure_mutex_;
  std::exception_ptr failure_;
  SerialQueue queue_;  // last, because its jobs use all of the above
};

}  // namespace octavo
