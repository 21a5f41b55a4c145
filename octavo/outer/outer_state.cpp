// SPDX-License-Identifier: Apache-2.0
// Outer: what it saves and loads.
#include <ATen/ATen.h>

#include <utility>
#include <vector>

#include "octavo/kernels/error.h"
#include "octavo/outer/outer.h"

namespace octavo {

namespace {

/// Returns zeros in float32, in the parameter's shape and memory order.
at::Tensor zeros_as(const OuterParameter& parameter) {
  parameter.require_as_at_first();
  return at::zeros_like(parameter.tensor.detach(), at::kFloat);
}

/// Returns the beginning of a fragment's keys, for example "fragment 3/".
std::string prefix_of(std::size_t fragment) { return "fragment " + std::to_string(fragment) + "/"; }

/// Returns those of `tensors` whose keys begin with the prefix, under their keys without it.
std::map<std::string, at::Tensor> below(const std::string& prefix, const std::map<std::string, at::Tensor>& tensors) {
  std::map<std::string, at::Tensor> found;
  for (auto it = tensors.lower_bound(prefix); it != tensors.end() && it->first.starts_with(prefix); ++it) {
    found[it->first.substr(prefix.size())] = it->second;
  }
  return found;
}

/// Drops what a rank owes to the ranks' sums. What it owes to all ranks as an owner stays until there are others.
void drop_owed_to_sums(Compressor& compressor) {
  CompressorState state = compressor.state();
  for (const Role& role : feedback_roles()) {
    if (role.extent != Extent::sent && role.extent != Extent::own_contribution) continue;
    std::erase_if(state.tensors, [&](const auto& one) { return one.first.starts_with(key_of(role)); });
  }
  compressor.load_state(state);
}

}  // namespace

std::map<std::string, at::Tensor> Outer::anchors() const {
  Tensors all;
  // also of those without elements, of which no fragment has a part
  for (const OuterParameter& parameter : parameters_) all[parameter.name] = zeros_as(parameter);
  for (const Round& round : rounds_) gather(all, "", round.fragment->anchors());
  return all;
}

/// Copies the views into tensors of the parameters' shapes.
void Outer::gather(Tensors& into, const std::string& role, const Fragment::Views& views) const {
  for (const auto& [part, values] : views) {
    const OuterParameter& parameter = parameters_[part.parameter];
    at::Tensor& whole = into[role + parameter.name];
    if (!whole.defined()) whole = zeros_as(parameter);
    elements_of(whole, part.range).copy_(values);
  }
}

/// Copies into the views, from tensors of the parameters' shapes, in any memory order.
void Outer::scatter(const Tensors& from, const std::string& role, const Fragment::Views& views) const {
  for (const auto& [part, values] : views) {
    const OuterParameter& parameter = parameters_[part.parameter];
    const at::Tensor ordered = zeros_as(parameter).copy_(from.at(role + parameter.name));
    values.copy_(elements_of(ordered, part.range));
  }
}

std::map<std::string, at::Tensor> Outer::shared_state() {
  throw_if_failed();
  Tensors all;
  for (Round& round : rounds_) {
    wait_for(round);
    gather(all, "anchor/", round.fragment->anchors());
    gather(all, "momentum/", round.fragment->momenta());
    if (round.arrived) gather(all, "arrived/", round.fragment->differences());
  }
  return all;
}

std::map<std::string, at::Tensor> Outer::own_state() {
  throw_if_failed();
  Tensors all;
  for (std::size_t f = 0; f < rounds_.size(); ++f) {
    wait_for(rounds_[f]);
    for (const auto& [key, values] : rounds_[f].fragment->compressor().state().tensors) {
      all[prefix_of(f) + key] = values.clone();
    }
  }
  return all;
}

std::vector<Outer::Position> Outer::positions() {
  std::vector<Position> all;
  for (Round& round : rounds_) {
    wait_for(round);
    const Waiting waiting = !round.arrived          ? Waiting::nothing
                            : round.arrived->finite ? Waiting::means
                                                    : Waiting::not_finite;
    const std::uint64_t wire_bytes = round.arrived ? round.arrived->wire_bytes : 0;
    all.push_back({round.fragment->compressor().step(), waiting, wire_bytes, round.is_at_start,
                   round.fragment->starts_at_anchor(), round.fragment->drifted()});
  }
  return all;
}

void Outer::require_fits(const Tensors& tensors, const std::vector<Position>& positions) const {
  if (positions.size() != rounds_.size()) {
    fail(ErrorCode::invalid_argument, "outer.load", "the state has ", positions.size(), " fragments, this outer loop ",
         rounds_.size(), ": make it with as many");
  }
  const auto require_values = [&](const std::string& role, const Round& round) {
    for (const FragmentPart& part : round.fragment->parts()) {
      const OuterParameter& parameter = parameters_[part.parameter];
      parameter.require_as_at_first();
      const auto found = tensors.find(role + parameter.name);
      if (found != tensors.end() && found->second.sizes() == parameter.tensor.sizes()) continue;
      fail(ErrorCode::invalid_argument, "outer.load", "expected ", role, parameter.name, " with the shape ",
           parameter.tensor.sizes(),
           found == tensors.end() ? ", which the state does not have" : ", the state has another shape");
    }
  };
  for (std::size_t f = 0; f < rounds_.size(); ++f) {
    require_values("anchor/", rounds_[f]);
    if (options_.has_momentum()) require_values("momentum/", rounds_[f]);
    if (positions[f].waiting != Waiting::nothing) require_values("arrived/", rounds_[f]);
  }
}

void Outer::restore(const Tensors& tensors, const std::vector<Position>& positions, std::uint64_t steps) {
  for (std::size_t f = 0; f < rounds_.size(); ++f) {
    Round& round = rounds_[f];
    scatter(tensors, "anchor/", round.fragment->anchors());
    scatter(tensors, "momentum/", round.fragment->momenta());
    round.arrived.reset();
    round.is_at_start = positions[f].is_at_start;
    round.fragment->set_starts_at_anchor(positions[f].starts_at_anchor);
    round.fragment->set_drifted(positions[f].drifted);
    if (positions[f].waiting != Waiting::nothing) {
      scatter(tensors, "arrived/", round.fragment->differences());
      round.arrived = Arrival{positions[f].waiting == Waiting::means, {}, positions[f].wire_bytes, {}};
    }
  }
  steps_ = steps;
}

void Outer::load(const std::map<std::string, at::Tensor>& tensors, const std::vector<Position>& positions,
                 std::uint64_t steps) {
  load_with(tensors, positions, steps, [&](std::size_t f, Compressor& compressor, CompressorState state) {
    state.tensors = below(prefix_of(f), tensors);
    compressor.load_state(state);
  });
}

std::map<std::string, at::Tensor> Outer::load_world(const std::vector<std::map<std::string, at::Tensor>>& world,
                                                    const std::vector<Position>& positions, std::uint64_t steps,
                                                    std::optional<int> rank) {
  if (world.empty() || (rank && (*rank < 0 || static_cast<std::size_t>(*rank) >= world.size()))) {
    fail(ErrorCode::invalid_argument, "outer.load_world",
         "expected what each rank of a world had, and a rank of it, got ", world.size(), " ranks",
         rank ? c10::str(" and rank ", *rank) : "");
  }
  load_with(world.front(), positions, steps, [&](std::size_t f, Compressor& compressor, CompressorState state) {
    std::vector<CompressorState> states(world.size(), state);
    for (std::size_t r = 0; r < world.size(); ++r) states[r].tensors = below(prefix_of(f), world[r]);
    compressor.load_world(states);
  });
  for (const Round& round : rounds_) round.fragment->set_starts_at_anchor(true);
  if (wire_.world_size() == 1) return take_over_owed(world, positions, rank.has_value());
  return rank ? owed_in_values(world, positions, *rank) : Tensors();
}

/// Makes what ranks of another world owed a lone rank's own progress, because it sends nothing. Returns what is to be
/// added to its parameters. `has_values`: they are those that it had in that world, with what it owed itself.
Outer::Tensors Outer::take_over_owed(const std::vector<Tensors>& world, const std::vector<Position>& positions,
                                     bool has_values) {
  Tensors all;
  for (std::size_t f = 0; f < rounds_.size(); ++f) {
    const bool has_own = has_values && !positions[f].starts_at_anchor;
    // no rank may owe anything, or only by feedback that does not know what
    if (!has_own && !subtract_owed(all, world, f)) continue;
    drop_owed_to_sums(rounds_[f].fragment->compressor());
    rounds_[f].is_at_start = false;
  }
  return all;
}

/// Subtracts the mean of what ranks of another world owed of a fragment. Returns whether any owed something.
bool Outer::subtract_owed(Tensors& from, const std::vector<Tensors>& world, std::size_t fragment) const {
  bool is_any = false;
  for (std::size_t rank = 0; rank < world.size(); ++rank) {
    Tensors of_rank;
    gather_owed(of_rank, world, fragment, rank);
    for (auto& [name, owed] : of_rank) {
      at::Tensor& sum = from[name];
      if (!sum.defined()) sum = at::zeros_like(owed);
      sum.sub_(owed.div_(static_cast<double>(world.size())));
      is_any = true;
    }
  }
  return is_any;
}

/// Copies what a rank of another world owed of a fragment into tensors of the parameters' shapes.
void Outer::gather_owed(Tensors& into, const std::vector<Tensors>& world, std::size_t fragment,
                        std::size_t rank) const {
  const Tensors residuals = below(prefix_of(fragment), world.at(rank));
  gather(into, "",
         rounds_[fragment].fragment->owed_of(residuals, static_cast<int>(rank), static_cast<int>(world.size())));
}

/// Returns what a rank of another world has in its parameters beside the anchor and its progress.
Outer::Tensors Outer::owed_in_values(const std::vector<Tensors>& world, const std::vector<Position>& positions,
                                     int rank) const {
  Tensors all;
  for (std::size_t f = 0; f < rounds_.size(); ++f) {
    if (!positions[f].starts_at_anchor) gather_owed(all, world, f, static_cast<std::size_t>(rank));
  }
  return all;
}

/// Loads a state. `load_state` loads a fragment's residuals into the state that it is given. Where they do not fit,
/// those of the fragments before it are put back.
void Outer::load_with(const Tensors& tensors, const std::vector<Position>& positions, std::uint64_t steps,
                      const LoadState& load_state) {
  throw_if_failed();
  require_fits(tensors, positions);
  std::vector<CompressorState> before;
  try {
    for (std::size_t f = 0; f < rounds_.size(); ++f) {
      wait_for(rounds_[f]);
      Compressor& compressor = rounds_[f].fragment->compressor();
      before.push_back(compressor.state());
      CompressorState after = before.back();
      after.tensors.clear();
      after.step = positions[f].rounds;
      load_state(f, compressor, std::move(after));
    }
  } catch (...) {
    for (std::size_t f = 0; f < before.size(); ++f) {
      rounds_[f].fragment->compressor().load_state(before[f]);
    }
    throw;
  }
  restore(tensors, positions, steps);
}

}  // namespace octavo
