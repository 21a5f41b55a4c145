// SPDX-License-Identifier: Apache-2.0
#include "octavo/outer/outer.h"

#include <ATen/ATen.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "octavo/codec/codec_text.h"
#include "octavo/comm/small_collectives.h"
#include "octavo/comm/stopwatch.h"
#include "octavo/kernels/error.h"
#include "octavo/rules/counter_random.h"

namespace octavo {

namespace {

constexpr const char* kRoundWhere = "outer.round";
/// Marks rounds of synchronize(), for which ranks may have made other numbers of steps.
constexpr std::uint64_t kSynchronizing = ~std::uint64_t{0};

/// What ranks tell one another before a round.
struct Told {
  std::uint64_t mark, fragment, round;
  std::uint64_t has_progress;  // 0 where the rank is at its start
  double drifted;              // Fragment::Drifted::sent
  bool is_of_same_round(const Told& other) const {
    return mark == other.mark && fragment == other.fragment && round == other.round;
  }
  std::string text() const {
    return c10::str("in round ", round, " of fragment ", fragment,
                    mark == kSynchronizing ? ", of synchronize()" : c10::str(", after step ", mark));
  }
};

/// Returns a digest of all that the ranks must agree on, except the values of the parameters.
std::uint64_t digest_of(const Plan& plan, const std::vector<OuterParameter>& parameters, const OuterOptions& options,
                        std::uint64_t seed) {
  std::string text =
      c10::str(plan.text(), ' ', seed, ' ', options.every, ' ', options.delay, ' ', options.fragments, ' ',
               shortest(options.lr), ' ', shortest(options.momentum), ' ', shortest(options.mix), ' ', options.spread);
  for (const OuterParameter& parameter : parameters) {
    text += c10::str(' ', parameter.name, ' ', parameter.tensor.sizes(), ' ', parameter.tensor.strides(), ' ',
                     parameter.tensor.scalar_type(), ' ', parameter.exempt);
  }
  return fingerprint_of(text);
}

/// Returns the plan with those rules that fit a parameter of a fragment.
Plan of_fragment(Plan plan, const std::vector<OuterParameter>& parameters, const std::vector<FragmentPart>& parts) {
  std::erase_if(plan.rules, [&](const Plan::Rule& rule) {
    return std::none_of(parts.begin(), parts.end(), [&](const FragmentPart& part) {
      return !parameters[part.parameter].exempt && rule.fits(parameters[part.parameter].name);
    });
  });
  return plan;
}

}  // namespace

Outer::Outer(const c10::intrusive_ptr<c10d::Backend>& backend, std::chrono::milliseconds timeout, const Plan& plan,
             std::vector<OuterParameter> parameters, const OuterOptions& options, std::uint64_t seed)
    : parameters_(std::move(parameters)), options_(options), wire_(backend, timeout) {
  require(plan, parameters_, options_);
  require_same_on_all(wire_, digest_of(plan, parameters_, options_, seed), kOuterWhere,
                      "have other options, another plan, seed or model: give all ranks the same");
  auto fragments = cut_into_fragments(parameters_, options_.fragments);
  for (std::size_t f = 0; f < fragments.size(); ++f) {
    // each fragment draws other bits; those of a model in one piece are those of the seed
    const std::uint64_t own_seed = f == 0 ? seed : rules::derive_key(seed, f);
    auto wire = std::make_unique<Wire>(backend, timeout);
    const Plan its_plan = of_fragment(plan, parameters_, fragments[f]);
    CompressorOptions its_options{.seed = own_seed, .steps_per_exchange = options_.every};
    rounds_.emplace_back().fragment =
        std::make_unique<Fragment>(parameters_, std::move(fragments[f]), std::move(wire), its_plan,
                                   std::move(its_options), options_.has_momentum());
    rounds_.back().fragment->compressor().set_owed_share(1 - options_.mix);
  }
}

Outer::~Outer() = default;

bool Outer::arrives(std::size_t fragment, std::uint64_t step) const {
  const std::uint64_t first = (fragment + 1) * options_.every / options_.fragments;
  return step >= first && (step - first) % options_.every == 0;
}

std::vector<Outer::Skipped> Outer::after_step() {
  throw_if_failed();
  ++steps_;
  ++steps_here_;
  for (Round& round : rounds_) round.is_at_start = false;
  if (options_.spread) {
    or_fail_for_good([&] {
      const double whole = options_.lr * options_.momentum, part = whole / static_cast<double>(options_.every);
      for (Round& round : rounds_) {
        // A round after a skipped one is longer, and has the momentum once like any other.
        if (round.fragment->drifted().now < whole - part / 2) round.fragment->drift(part);
      }
    });
  }
  std::vector<Skipped> skipped;
  for (std::size_t f = 0; f < rounds_.size(); ++f) {
    if (arrives(f, steps_ + options_.delay)) send(f, steps_);
  }
  for (std::size_t f = 0; f < rounds_.size(); ++f) {
    if (arrives(f, steps_)) arrive(f, options_.mix, skipped);
  }
  return skipped;
}

std::vector<Outer::Skipped> Outer::synchronize() {
  throw_if_failed();
  std::vector<Skipped> skipped;
  for (std::size_t f = 0; f < rounds_.size(); ++f) arrive(f, options_.mix, skipped);
  std::vector<std::size_t> sent;  // found out before the first is sent: transfers do not overlap
  or_fail_for_good([&] {
    for (std::size_t f = 0; f < rounds_.size(); ++f) {
      if (agree_on_round(f, kSynchronizing, !rounds_[f].is_at_start).any_has_progress) sent.push_back(f);
    }
  });
  for (const std::size_t f : sent) send(f, kSynchronizing);
  for (std::size_t f = 0; f < rounds_.size(); ++f) arrive(f, 0, skipped);
  or_fail_for_good([&] {
    for (Round& round : rounds_) {  // on all ranks, also where a round was skipped
      round.fragment->return_to_anchor();
      round.is_at_start = true;
    }
  });
  for (Skipped& one : skipped) one.returned_to_start = true;
  return skipped;
}

/// `mark`: the step after which all ranks send this round, or kSynchronizing.
void Outer::send(std::size_t index, std::uint64_t mark) {
  or_fail_for_good([&] {
    Round& round = rounds_[index];
    round.fragment->begin_round();
    const auto promise = std::make_shared<std::promise<Arrival>>();
    queue_.push([this, promise, mark, index, ready = streams_.hand_over(parameters_[0].tensor.device())] {
      try {
        or_fail_for_good([&] {
          throw_if_failed();  // otherwise the ranks no longer agree on which transfer is next
          const auto on_own_stream = ready.take();
          promise->set_value(exchange(index, mark));
        });
      } catch (...) {
        promise->set_exception(std::current_exception());
      }
    });
    round.in_exchange = promise->get_future();
  });
}

/// Lets ranks tell one another where they are. `has_progress`: whether this rank has moved the fragment since its
/// start. Throws Error communication where ranks are in other rounds.
Outer::Agreed Outer::agree_on_round(std::size_t index, std::uint64_t mark, bool has_progress) {
  Fragment& fragment = *rounds_[index].fragment;
  const Told own = {mark, index, fragment.compressor().step() + 1, has_progress, fragment.drifted().sent};
  if (wire_.world_size() == 1) return {has_progress, own.drifted};
  const std::vector<Told> all = all_gather_value(wire_, own);
  Agreed agreed = {false, 0};
  bool is_alike = true;
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    const Told& told = all[rank];
    if (!told.is_of_same_round(own)) {
      fail(ErrorCode::communication, kRoundWhere, "rank ", wire_.rank(), " is ", own.text(), ", and rank ", rank,
           " is ", told.text());
    }
    agreed.any_has_progress = agreed.any_has_progress || told.has_progress != 0;
    agreed.drifted += told.drifted;
    is_alike = is_alike && told.drifted == own.drifted;
  }
  agreed.drifted = is_alike ? own.drifted : agreed.drifted / wire_.world_size();
  return agreed;
}

Outer::Arrival Outer::exchange(std::size_t index, std::uint64_t mark) {
  Fragment& fragment = *rounds_[index].fragment;
  const CompressorStats before = fragment.compressor().stats();
  const std::uint64_t told = wire_.sent_bytes();
  Stopwatch watch;
  double waited_s = 0;
  const Agreed agreed = agree_on_round(index, mark, true);  // a dense bucket says nothing of its round
  watch.lap(waited_s);
  Arrival arrival{fragment.exchange(mark)};
  arrival.drifted = agreed.drifted;
  if (!arrival.finite) arrival.culprits = ranks_with_nonfinite(fragment.gave_finite_values());
  const CompressorStats after = fragment.compressor().stats();
  arrival.wire_bytes = after.wire_bytes - before.wire_bytes + wire_.sent_bytes() - told;
  arrival.seconds = after.seconds - before.seconds;
  arrival.seconds.wait_up += waited_s;
  return arrival;
}

/// Returns those of all ranks whose values are not finite.
std::vector<int> Outer::ranks_with_nonfinite(bool finite) {
  at::Tensor all = at::zeros({wire_.world_size()}, at::kLong);
  all.mutable_data_ptr<std::int64_t>()[wire_.rank()] = finite ? 0 : 1;
  if (wire_.world_size() > 1) wire_.all_reduce(all);
  std::vector<int> ranks;
  for (int rank = 0; rank < wire_.world_size(); ++rank) {
    if (all.const_data_ptr<std::int64_t>()[rank] != 0) ranks.push_back(rank);
  }
  return ranks;
}

void Outer::throw_if_failed() {
  const std::lock_guard lock(failure_mutex_);
  if (failure_) std::rethrow_exception(failure_);
}

/// Calls `body`. Where it throws, every later call does: the other ranks make this round, and this rank has not made
/// it.
template <class Body>
void Outer::or_fail_for_good(const Body& body) {
  try {
    body();
  } catch (...) {
    const std::lock_guard lock(failure_mutex_);
    failure_ = std::current_exception();
    throw;
  }
}

void Outer::wait_for(Round& round) {
  if (!round.in_exchange) return;
  Stopwatch watch;
  auto in_exchange = std::exchange(round.in_exchange, std::nullopt);
  round.arrived = in_exchange->get();
  round.fragment->set_drifted({round.fragment->drifted().now, round.arrived->drifted});
  watch.lap(waited_s_);
}

void Outer::wait() {
  for (Round& round : rounds_) wait_for(round);
}

void Outer::arrive(std::size_t index, double own_share, std::vector<Skipped>& skipped) {
  Round& round = rounds_[index];
  wait_for(round);
  if (!round.arrived) return;
  const Arrival arrival = *std::exchange(round.arrived, std::nullopt);
  ++rounds_here_;
  wire_bytes_ += arrival.wire_bytes;
  seconds_ = seconds_ + arrival.seconds;
  if (arrival.finite) {
    round.is_at_start = own_share == 0;
    return or_fail_for_good([&] {
      round.fragment->end_round({static_cast<float>(-options_.lr), static_cast<float>(options_.momentum),
                                 static_cast<float>(own_share), options_.spread});
    });
  }
  ++skipped_;
  or_fail_for_good(
      [&] { skipped.push_back({index, round.fragment->compressor().step(), arrival.culprits, return_to_start()}); });
}

/// Moves this rank back to its starts where it has a NaN or an infinity anywhere, which would spread with the next
/// step. Returns whether it did so.
bool Outer::return_to_start() {
  const bool finite = std::all_of(rounds_.begin(), rounds_.end(),
                                  [](const Round& round) { return round.fragment->own_values_are_finite(); });
  if (finite) return false;
  begin_at_start();
  return true;
}

void Outer::begin_at_start() {
  throw_if_failed();
  or_fail_for_good([&] {
    for (Round& round : rounds_) {
      wait_for(round);  // because what is owed changes when an exchange ends
      round.fragment->return_to_start();
    }
  });
}

OuterStats Outer::stats() const {
  OuterStats stats = {wire_bytes_, 0, steps_here_, rounds_here_, skipped_, waited_s_, seconds_};
  for (const Round& round : rounds_) stats.dense_bytes += round.fragment->dense_bytes() * steps_here_;
  return stats;
}

}  // namespace octavo
