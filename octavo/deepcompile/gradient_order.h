// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "octavo/comm/wire.h"
#include "octavo/export.h"

namespace octavo::dc {

/// In which order ranks send the gradients of a graph, so that their buckets have the same parameters although a rank
/// lacks a gradient, or has them in another order, as where a model decides by its data.
///
/// A gradient that comes before its turn waits for it. Those that are expected of all ranks have a place in the order;
/// what a rank lacks of them when its pass ends it sends as zeros. Then ranks tell one another what they have beside,
/// as a bit for each parameter, and send that. The order is that in which rank 0's gradients came in a pass before,
/// without what some rank has lacked since; ranks agree on it where that has changed. Not thread-safe; all ranks make
/// the calls of a pass's end together. Throws what Wire throws.
class OCTAVO_API GradientOrder {
 public:
  /// A gradient whose turn it is; undefined where this rank has none.
  struct Turn {
    long id;
    at::Tensor gradient;
  };
  using Turns = std::vector<Turn>;

  /// `ids`: of the graph's parameters. `first`: the order of the first pass, of some of them. `learns`: others take its
  /// place. The same on all ranks.
  GradientOrder(std::unique_ptr<Wire> wire, long graph_id, std::vector<long> ids, std::vector<long> first, bool learns);

  /// Forgets what a pass that was broken off has left.
  void begin_pass();
  /// Takes a gradient, whose memory is this object's from now on. Returns those whose turn it is now.
  Turns take(at::Tensor gradient, long id);

  // The end of a pass, one after another:

  /// The expected gradients that were not sent yet.
  Turns rest();
  /// Tells the others what this rank has.
  void tell();
  /// What any rank has beside the expected. Throws Error communication where a rank is at the end of another graph.
  Turns hear();
  /// The parameters of which no rank had a gradient in this pass, although it was sent: the zeros of all.
  const std::vector<long>& absent() const { return absent_; }

  std::uint64_t sent_bytes() const { return wire_->sent_bytes(); }

 private:
  struct Header;
  struct Heard {
    std::vector<bool> some, all, beside;  // by parameter: ranks that had a gradient, and that have one left
  };

  Turns due();
  Turn turn_of(long id);
  std::uint64_t message_bytes() const;
  Heard read_messages() const;
  void learn(const Heard& heard);
  std::vector<long> arrivals_of_first_rank();

  std::unique_ptr<Wire> wire_;
  long graph_id_;
  std::vector<long> ids_, order_;
  bool learns_, has_learned_ = false;
  std::unordered_map<long, std::size_t> indices_;
  std::unordered_set<long> unsteady_;  // what a rank has lacked of an order that was learned

  // Of the pass:
  std::size_t next_ = 0;  // in the order
  std::unordered_map<long, at::Tensor> waiting_;
  std::vector<long> arrivals_;
  std::vector<bool> has_;  // by parameter
  at::Tensor sent_, got_;
  std::optional<Transfer> transfer_;
  std::vector<long> absent_;
};

}  // namespace octavo::dc
