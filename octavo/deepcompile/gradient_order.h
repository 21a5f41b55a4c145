// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "octavo/comm/wire.h"
#include "octavo/export.h"

namespace octavo::dc {

/// The order in which ranks send the gradients of a graph. With it their buckets have the same parameters although a
/// rank lacks a gradient, or has them in another order, for example because a model decides by its data.
///
/// A gradient that comes before its turn waits for it. The gradients that are expected of all ranks have a place in the
/// order. A rank sends zeros for those that it lacks when its pass ends, when it is told that they will not come, or as
/// soon as enough gradients wait behind them: another rank may wait for a bucket with them, and the pass of this one
/// needs that rank for its next gather. At the end ranks tell one another which others they have, as bits for each
/// parameter, and send these. The order is that in which rank 0's gradients came in a pass before, without those that
/// some rank has lacked since. Ranks agree on it again where that has changed. Not thread-safe; all ranks make the
/// calls of a pass's end together. Throws what Wire throws.
class OCTAVO_API GradientOrder {
 public:
  /// A gradient whose turn it is; undefined where this rank has none.
  struct Turn {
    long id;
    at::Tensor gradient;
  };
  using Turns = std::vector<Turn>;

  /// `counts` has the elements of each of the graph's parameters, by id. `first` is the order of the first pass, for
  /// some of them. `learns`: other orders replace it. `most_waiting`: the elements of the order that may wait behind a
  /// missing gradient before zeros are sent in its place. All are the same on all ranks.
  GradientOrder(std::unique_ptr<Wire> wire, long graph_id, const std::map<long, std::int64_t>& counts,
                std::vector<long> first, bool learns, std::int64_t most_waiting);

  void begin_pass();
  /// Forgets what a pass that was broken off has left. Sends nothing.
  void give_up_pass();
  /// Takes a gradient, whose memory is this object's from now on. Returns the gradients whose turn it is now.
  Turns take(at::Tensor gradient, long id);
  /// Expects no more gradients of these parameters in this pass, so that zeros are sent as soon as it is their turn.
  /// Returns the gradients whose turn it is now.
  Turns skip(const std::vector<long>& ids);

  // The end of a pass; these are called one after another:

  /// Returns the expected gradients that were not sent yet.
  Turns rest();
  /// Tells the others what this rank has.
  void send_flags();
  /// Returns what any rank has beside the expected gradients. Throws Error communication where a rank is at the end of
  /// another graph or pass.
  Turns receive_flags();
  /// The parameters for which no rank had a gradient in this pass, although one was sent: zeros on all ranks. Where a
  /// graph ends several times in a pass, each is among them once.
  const std::vector<long>& absent() const { return absent_; }

  std::uint64_t sent_bytes() const { return wire_->sent_bytes(); }

 private:
  struct Header;
  struct RankFlags {
    std::vector<bool> some, all, beside;  // by parameter: some ranks had a gradient, all had, one has it left
  };

  Turns due();
  bool gives_up_missing() const;
  Turn turn_of(long id);
  Header own_header() const;
  std::uint64_t message_bytes() const;
  RankFlags read_messages() const;
  bool note_unsteady(const RankFlags& flags);
  void learn(const RankFlags& flags);
  std::vector<long> arrivals_of_first_rank();

  std::unique_ptr<Wire> wire_;
  long graph_id_;
  std::vector<long> ids_;
  std::vector<std::int64_t> counts_;  // elements, by parameter
  std::vector<long> order_;
  std::int64_t most_waiting_;
  bool learns_, has_learned_ = false;
  std::unordered_map<long, std::size_t> indices_;
  std::unordered_set<long> late_;      // parameters of a learned order that came once after their zeros
  std::unordered_set<long> unsteady_;  // those that some rank has lacked, or that came so twice

  std::int64_t passes_ = 0;  // begun so far

  // The state of the pass:
  std::size_t next_ = 0;  // place in the order
  std::unordered_map<long, at::Tensor> waiting_;
  std::unordered_set<long> skipped_;
  std::vector<long> arrivals_;
  std::vector<bool> has_;  // by parameter
  at::Tensor sent_, got_;
  std::optional<Transfer> transfer_;
  std::vector<long> absent_;                // since the last end
  std::unordered_set<long> absent_before_;  // of all ends of the pass
};

}  // namespace octavo::dc
