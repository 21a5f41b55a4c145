// SPDX-License-Identifier: Apache-2.0
#include "octavo/outer/outer.h"

#include <ATen/ATen.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <set>
#include <string_view>
#include <utility>

#include "octavo/codec/registry.h"
#include "octavo/comm/all_gather_value.h"
#include "octavo/comm/schedule/stopwatch.h"
#include "octavo/device/dispatch.h"
#include "octavo/kernels/error.h"
#include "octavo/rules/counter_random.h"

namespace octavo {

namespace {

constexpr const char* kOfOuter = "outer.Outer";
/// Marks rounds of synchronize(), for which ranks may have made other numbers of steps.
constexpr std::uint64_t kSynchronizing = ~std::uint64_t{0};

void require_options(const OuterOptions& options) {
  const auto refuse = [](auto... why) { fail(ErrorCode::invalid_argument, kOfOuter, why...); };
  if (options.every == 0) refuse("every must be at least 1 step");
  if (options.delay >= options.every) {
    refuse("a round must arrive before the next one is sent: delay must be below every, got ", options.delay, " of ",
           options.every);
  }
  if (options.fragments == 0 || options.fragments > options.every) {
    refuse("fragments must be between 1 and every, ", options.every, ", got ", options.fragments);
  }
  if (!(options.lr > 0 && std::isfinite(options.lr))) refuse("lr must be above 0 and finite, got ", options.lr);
  if (!(options.momentum >= 0 && options.momentum < 1)) refuse("momentum must be in [0, 1), got ", options.momentum);
  if (!(options.mix >= 0 && options.mix < 1)) refuse("mix must be in [0, 1), got ", options.mix);
  if (options.spread && options.mix > 0) {
    refuse(
        "what a rank keeps of its own values, mix, has its part of a spread momentum in it, which would count twice: ",
        "use mix=0 or spread=False");
  }
}

void require_parameters(const std::vector<OuterParameter>& parameters) {
  if (parameters.empty()) fail(ErrorCode::invalid_argument, kOfOuter, "the model has no parameters that are trained");
  for (const OuterParameter& parameter : parameters) {
    if (parameter.tensor.defined()) continue;
    fail(ErrorCode::invalid_argument, kOfOuter, "expected a tensor for ", parameter.name, ", got an undefined one");
  }
  const c10::Device device = parameters[0].tensor.device();
  kernels_for(device);
  std::set<std::string_view> names;
  for (const auto& [name, tensor, exempt, layout] : parameters) {
    if (!at::isFloatingType(tensor.scalar_type()) || !tensor.is_non_overlapping_and_dense()) {
      fail(ErrorCode::invalid_argument, kOfOuter, name, " is ", toString(tensor.scalar_type()), " with strides ",
           tensor.strides(), ": parameters must be real floating numbers in dense memory",
           tensor.is_complex() ? "; keep a complex one as a real one of twice the size (torch.view_as_complex)" : "");
    }
    if (!names.insert(name).second) {
      fail(ErrorCode::invalid_argument, kOfOuter, "two parameters have the name ", name, ": states are kept by name");
    }
    if (tensor.device() == device) continue;
    fail(ErrorCode::unsupported, kOfOuter, "all parameters must be on one device: ", name, " is on ",
         tensor.device().str(), ", ", parameters[0].name, " on ", device.str());
  }
}

/// Throws where two parameters lie in one memory, in which each would be moved by itself.
void require_own_memory(const std::vector<OuterParameter>& parameters) {
  struct Span {
    std::uintptr_t begin, end;
    std::string_view name;
  };
  std::vector<Span> spans;
  for (const OuterParameter& parameter : parameters) {
    const auto begin = reinterpret_cast<std::uintptr_t>(parameter.tensor.const_data_ptr());
    if (parameter.tensor.numel() > 0) spans.push_back({begin, begin + parameter.tensor.nbytes(), parameter.name});
  }
  std::ranges::sort(spans, {}, &Span::begin);
  const auto share = std::ranges::adjacent_find(spans, [](const Span& a, const Span& b) { return b.begin < a.end; });
  if (share == spans.end()) return;
  fail(ErrorCode::invalid_argument, kOfOuter, share->name, " and ", std::next(share)->name, " share memory, and each ",
       "would be moved by itself: make them one parameter, by assigning the one module's parameter to the other");
}

void require_plan_fits(const Plan& plan, double mix) {
  const auto refuse = [&](auto... why) {
    fail(ErrorCode::invalid_argument, kOfOuter, "the plan ", plan.text(), " ", why...);
  };
  if (plan.choices) refuse("measures the exchanges of every step: name the plan of rounds, such as sign+ef");
  if (plan.votes()) refuse("keeps no magnitudes, and rounds need them: use sign+ef");
  if (plan.momentum()) refuse("has a momentum of its own beside the outer one: use one without, such as topk:0.01+ef");
  const auto owes_twice = [](const ParameterPlan& one) {
    if (!one.feedback) return false;
    const bool drops_sums = (one.down ? *one.down : *one.codec).traits().leaves_unsent;  // owners then owe, too
    return one.map || !one.feedback->knows_owed_share() || drops_sums;
  };
  const bool any =
      std::any_of(plan.rules.begin(), plan.rules.end(), [&](const Plan::Rule& rule) { return owes_twice(rule.plan); });
  if (mix > 0 && (any || owes_twice(plan))) {
    refuse(
        "owes what it could not send, and what a rank keeps of its own values, mix, is part of its next difference: ",
        "both would be sent. Use mix=0, or error feedback of values whose sums are sent whole, such as sign+ef or ",
        "topk:64/4096:sign+down:int8+ef");
  }
}

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
  require_same_on_all(wire_, digest_of(plan, parameters_, options_, seed), kOfOuter,
                      "have other options, another plan, seed or model: give all ranks the same");
  auto fragments = cut_into_fragments(parameters_, options_.fragments);
  for (std::size_t f = 0; f < fragments.size(); ++f) {
    // each fragment draws other bits; those of a model in one piece are those of the seed
    const std::uint64_t own_seed = f == 0 ? seed : rules::derive_key(seed, f);
    auto wire = std::make_unique<Wire>(backend, timeout);
    const Plan its_plan = of_fragment(plan, parameters_, fragments[f]);
    rounds_.emplace_back().fragment = std::make_unique<Fragment>(parameters_, std::move(fragments[f]), std::move(wire),
                                                                 its_plan, own_seed, options_.has_momentum());
    rounds_.back().fragment->compressor().set_owed_share(1 - options_.mix);
  }
}

Outer::~Outer() = default;

void Outer::require_plan(const Plan& plan, double mix) { require_plan_fits(plan, mix); }

void Outer::require(const Plan& plan, const std::vector<OuterParameter>& parameters, const OuterOptions& options) {
  require_options(options);
  require_parameters(parameters);
  require_own_memory(parameters);
  require_plan_fits(plan, options.mix);
  std::vector<std::string> compressed;
  for (const OuterParameter& parameter : parameters) {
    if (!parameter.exempt) compressed.push_back(parameter.name);
  }
  plan.require_rules_fit(compressed);
  cut_into_fragments(parameters, options.fragments);
}

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
    if (arrives(f, steps_ + options_.delay)) send(rounds_[f], steps_);
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
  for (Round& round : rounds_) {
    if (!round.is_at_start) send(round, kSynchronizing);
  }
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
void Outer::send(Round& round, std::uint64_t mark) {
  or_fail_for_good([&] {
    Fragment& fragment = *round.fragment;
    fragment.begin_round();
    const auto promise = std::make_shared<std::promise<Arrival>>();
    queue_.push([this, promise, mark, &fragment, ready = streams_.hand_over(parameters_[0].tensor.device())] {
      try {
        or_fail_for_good([&] {
          throw_if_failed();  // otherwise the ranks no longer agree on which transfer is next
          const auto on_own_stream = ready.take();
          promise->set_value(exchange(fragment, mark));
        });
      } catch (...) {
        promise->set_exception(std::current_exception());
      }
    });
    round.in_exchange = promise->get_future();
  });
}

Outer::Arrival Outer::exchange(Fragment& fragment, std::uint64_t mark) {
  const CompressorStats before = fragment.compressor().stats();
  const std::uint64_t told = wire_.sent_bytes();
  Arrival arrival{fragment.exchange(mark)};
  if (!arrival.finite) arrival.culprits = ranks_with_nonfinite(fragment.gave_finite_values());
  const CompressorStats after = fragment.compressor().stats();
  arrival.wire_bytes = after.wire_bytes - before.wire_bytes + wire_.sent_bytes() - told;
  arrival.seconds = after.seconds - before.seconds;
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
  skipped.push_back({index, round.fragment->compressor().step(), arrival.culprits, return_to_start()});
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
