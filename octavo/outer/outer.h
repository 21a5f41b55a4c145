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

/// How ranks come together again.
struct OuterOptions {
  std::uint64_t every = 20;     // steps from one round of a fragment to the next
  std::uint64_t delay = 0;      // steps that a round travels, while ranks go on; below `every`
  std::uint64_t fragments = 1;  // rounds of which follow one another at equal distances; at most `every`
  double lr = 1.0, momentum = 0.3;
  double mix = 0;  // share of its own values that a rank keeps when a round arrives; below 1
};

struct OuterStats {
  std::uint64_t wire_bytes;      // sent by this rank, of rounds that have arrived
  std::uint64_t dense_bytes;     // what rings would have sent for a gradient in each step
  std::uint64_t steps;           // of this object, as all of these
  std::uint64_t rounds;          // that were exchanged, of all fragments
  std::uint64_t skipped_rounds;  // of which some rank had a NaN or an infinity
  double waited_s;               // that after_step() and synchronize() waited for rounds
  PhaseSeconds seconds;          // of the exchanges of these
};

/// The outer loop of DiLoCo (Douillard et al. 2023) and Streaming DiLoCo (2025): ranks make steps of their own, and in
/// a round exchange how far each has moved from the anchor, which all have alike, compressed by a plan. Along the mean
/// the outer optimizer, Nesterov's, moves the anchor, from which the ranks go on.
///
/// A fragment's round arrives at step (f+1)/fragments * every, counted from 1, and every `every` steps after; it is
/// sent `delay` steps before, and travels on a thread of its own. A round is a transaction: where a value of any rank
/// is not finite, anchor, momentum and residuals stay as they were on all ranks, and a rank with such values of its own
/// goes back to the starts of all fragments (Fragment). Not thread-safe. All ranks make the same calls in the same
/// order.
class OCTAVO_API Outer {
 public:
  /// `backend`: its own, of the ranks. Parameters must be the same on all ranks: they are the first anchor. Throws
  /// Error invalid_argument for options, parameters or a plan that make no sense, unsupported for a device without
  /// kernels.
  Outer(const c10::intrusive_ptr<c10d::Backend>& backend, std::chrono::milliseconds deadline, const Plan& plan,
        std::vector<OuterParameter> parameters, const OuterOptions& options, std::uint64_t seed = 0);
  ~Outer();

  /// What the constructor throws, for who has something to do before it.
  static void require(const Plan& plan, const std::vector<OuterParameter>& parameters, const OuterOptions& options);
  /// What is known of a plan without a model.
  static void require_plan(const Plan& plan, double mix = 0);

  /// A round that all ranks have skipped.
  struct Skipped {
    std::uint64_t fragment, round;
    std::vector<int> ranks;  // that had a NaN or an infinity; none where sums overflowed
    bool returned_to_start;  // this rank
  };
  /// After each of the rank's own steps. Throws what Wire throws; the ranks must then be connected anew by a new
  /// object, from saved states.
  std::vector<Skipped> after_step();
  /// Ends the rounds under way and makes one of all fragments at once: parameters are then the anchor on all ranks,
  /// also where a round was skipped. Changes the number of no step. Throws as after_step().
  std::vector<Skipped> synchronize();

  /// This rank's own steps.
  std::uint64_t steps() const { return steps_; }
  OuterStats stats() const;

  /// The anchor in each parameter's shape and memory order, float32: copies, by name.
  std::map<std::string, at::Tensor> anchors() const;

  /// What lives from step to step, but for the parameters themselves: copies. On all ranks alike "anchor/NAME",
  /// "momentum/NAME" and "arrived/NAME" (means that wait for their step), in the parameter's shape, float32; of each
  /// rank its own "fragment F/worker/NAME" and so on (Compressor::residuals). Both wait for rounds under way.
  std::map<std::string, at::Tensor> common_state();
  std::map<std::string, at::Tensor> own_state();
  /// Of each fragment: the number of its rounds; whether one waits for its step (0, 1, or 2 where that was not finite),
  /// and the bytes that it sent; whether no step was made since a round arrived; whether ranks began at the anchor.
  struct Position {
    std::uint64_t rounds, waiting, wire_bytes;
    bool is_at_start, starts_at_anchor;
  };
  std::vector<Position> positions();
  /// Restores what both, together, and positions() gave on this rank, in a world of as many ranks, after `steps` steps.
  /// Throws Error invalid_argument where something does not fit; nothing has changed then.
  void load(const std::map<std::string, at::Tensor>& own, const std::vector<Position>& positions, std::uint64_t steps);
  /// The same from what all ranks of another world had, by rank: residuals are redistributed over this one, and ranks
  /// go on from the anchor and their progress alone. `rank`: what this one was there, if it goes on from parameters of
  /// that world. Returns what is then to be added to them, by name, in the parameter's shape and memory order, float32:
  /// what it owed is in them no longer. Alone in its world a rank keeps that as progress.
  std::map<std::string, at::Tensor> load_world(const std::vector<std::map<std::string, at::Tensor>>& world,
                                               const std::vector<Position>& positions, std::uint64_t steps,
                                               std::optional<int> rank);

 private:
  /// How an exchange ended, the same on all ranks.
  struct Arrival {
    bool finite = true;
    std::vector<int> culprits = {};
    std::uint64_t wire_bytes = 0;
    PhaseSeconds seconds = {};
  };
  /// A fragment, and what became of its last round: nothing, or one of the two.
  struct Round {
    std::unique_ptr<Fragment> fragment;
    std::optional<std::future<Arrival>> travelling;
    std::optional<Arrival> waiting;
    bool is_at_start = false;  // on all ranks: no step was made since it arrived
  };
  using Tensors = std::map<std::string, at::Tensor>;

  bool arrives(std::size_t fragment, std::uint64_t step) const;
  void send(Round& round);
  Arrival exchange(Fragment& fragment);
  std::vector<int> ranks_without(bool finite);
  void wait_for(Round& round);
  void arrive(std::size_t index, double own_share, std::vector<Skipped>& skipped);
  bool return_to_start();
  void throw_if_failed();
  void gather(Tensors& into, const std::string& role, const Fragment::Views& views) const;
  void require_fits(const Tensors& own, const std::vector<Position>& positions) const;
  void load_with(const Tensors& own, const std::vector<Position>& positions, std::uint64_t steps,
                 const std::function<void(std::size_t fragment, Compressor& compressor)>& load_residuals);
  void restore(const Tensors& own, const std::vector<Position>& positions, std::uint64_t steps);
  void scatter(const Tensors& from, const std::string& role, const Fragment::Views& views) const;
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
  SerialQueue queue_;  // last: its jobs use all of the above
};

}  // namespace octavo
