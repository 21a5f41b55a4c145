// SPDX-License-Identifier: Apache-2.0
#include "octavo/deepcompile/gradient_order.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cstring>
#include <span>
#include <string>
#include <utility>

#include "octavo/comm/schedule/messages.h"
#include "octavo/comm/small_collectives.h"
#include "octavo/deepcompile/error_context.h"
#include "octavo/kernels/error.h"

namespace octavo::dc {

/// The beginning of a message. Two bits for each parameter follow: whether the rank had a gradient, and whether it has
/// one left.
struct GradientOrder::Header {
  std::int64_t graph_id, pass, parameters;
  bool operator==(const Header&) const = default;
};

namespace {

void set_bit(std::uint8_t* bits, std::size_t at) { bits[at / 8] |= static_cast<std::uint8_t>(1U << at % 8); }
bool has_bit(const std::uint8_t* bits, std::size_t at) { return (bits[at / 8] >> at % 8 & 1U) != 0; }

}  // namespace

GradientOrder::GradientOrder(std::unique_ptr<Wire> wire, long graph_id, const std::map<long, std::int64_t>& counts,
                             std::vector<long> first, bool learns, std::int64_t most_waiting)
    : wire_(std::move(wire)),
      graph_id_(graph_id),
      order_(std::move(first)),
      most_waiting_(most_waiting),
      learns_(learns) {
  for (const auto& [id, count] : counts) {
    indices_.emplace(id, ids_.size());
    ids_.push_back(id);
    counts_.push_back(count);
  }
  for (const long id : order_) {
    if (indices_.contains(id)) continue;
    fail(ErrorCode::invalid_argument, "deepcompile.gradient_order", "parameter ", id, " is none of graph ", graph_id_);
  }
  has_.resize(ids_.size());
}

void GradientOrder::begin_pass() {
  give_up_pass();
  ++passes_;
}

void GradientOrder::give_up_pass() {
  transfer_.reset();
  next_ = 0;
  waiting_.clear();
  skipped_.clear();
  arrivals_.clear();
  absent_.clear();
  absent_before_.clear();
  has_.assign(ids_.size(), false);
}

/// Adds a second gradient of a pass to the first. Where the first was sent already, the second is sent beside the
/// expected ones.
GradientOrder::Turns GradientOrder::take(at::Tensor gradient, long id) {
  const std::size_t index = indices_.at(id);
  if (!has_[index]) arrivals_.push_back(id);
  has_[index] = true;
  const auto [place, is_first] = waiting_.try_emplace(id, gradient);
  if (!is_first) place->second.add_(gradient);
  return due();
}

GradientOrder::Turns GradientOrder::skip(const std::vector<long>& ids) {
  skipped_.insert(ids.begin(), ids.end());
  return due();
}

GradientOrder::Turns GradientOrder::due() {
  Turns turns;
  const auto is_next_there = [&] {
    return next_ < order_.size() && (waiting_.contains(order_[next_]) || skipped_.contains(order_[next_]));
  };
  const auto take_next = [&] { turns.push_back(turn_of(order_[next_++])); };
  while (true) {
    while (is_next_there()) take_next();
    if (!gives_up_missing()) return turns;
    while (!is_next_there()) take_next();
  }
}

/// Whether to send zeros for the gradients that are missing before the first one of the order that waits. If they come
/// after all, they are sent beside the expected ones. In the first pass the order is a guess, and a gradient may only
/// be late: there as much must wait as is missing.
bool GradientOrder::gives_up_missing() const {
  if (waiting_.empty()) return false;                            // mostly: gradients come in their order
  std::int64_t missing = 0, waiting = 0, between = 0, span = 0;  // elements; `span`: up to the last one that waits
  for (std::size_t place = next_; place < order_.size(); ++place) {
    const std::int64_t count = counts_[indices_.at(order_[place])];
    if (!waiting_.contains(order_[place])) {
      (waiting == 0 ? missing : between) += count;
      continue;
    }
    waiting += count;
    span = missing + between + waiting;
  }
  return has_learned_ ? span > most_waiting_ : waiting > most_waiting_ && waiting >= missing;
}

GradientOrder::Turn GradientOrder::turn_of(long id) {
  auto waited = waiting_.extract(id);
  return {id, waited ? std::move(waited.mapped()) : at::Tensor()};
}

GradientOrder::Turns GradientOrder::rest() {
  Turns turns;
  while (next_ < order_.size()) turns.push_back(turn_of(order_[next_++]));
  return turns;
}

std::uint64_t GradientOrder::message_bytes() const { return sizeof(Header) + (2 * ids_.size() + 7) / 8; }

GradientOrder::Header GradientOrder::own_header() const {
  return {graph_id_, passes_, static_cast<std::int64_t>(ids_.size())};
}

void GradientOrder::send_flags() {
  const auto world = static_cast<std::size_t>(wire_->world_size());
  const std::uint64_t bytes = message_bytes();
  auto* const message = wire_->reserve_to_send(sent_, bytes, at::kCPU);
  std::memset(message, 0, bytes);
  const Header header = own_header();
  std::memcpy(message, &header, sizeof header);
  for (std::size_t i = 0; i < ids_.size(); ++i) {
    if (has_[i]) set_bit(message + sizeof header, 2 * i);
    if (waiting_.contains(ids_[i])) set_bit(message + sizeof header, 2 * i + 1);
  }
  if (world > 1) transfer_ = send_to_others(*wire_, at::kCPU, sent_, bytes, got_, std::vector(world, bytes));
}

GradientOrder::Turns GradientOrder::receive_flags() {
  absent_.clear();
  const auto context = [&] { return "the end of the backward pass of graph " + std::to_string(graph_id_); };
  if (transfer_) with_context(context, [&] { transfer_->wait(); });
  const RankFlags flags = read_messages();
  transfer_.reset();
  Turns turns;
  for (std::size_t i = 0; i < ids_.size(); ++i) {
    if (flags.beside[i]) turns.push_back(turn_of(ids_[i]));
  }
  for (const long id : order_) {
    if (!flags.some[indices_.at(id)] && absent_before_.insert(id).second) absent_.push_back(id);
  }
  if (learns_) learn(flags);
  return turns;
}

GradientOrder::RankFlags GradientOrder::read_messages() const {
  RankFlags flags{has_, has_, std::vector<bool>(ids_.size())};
  for (int rank = 0; rank < wire_->world_size(); ++rank) {
    const bool is_own = rank == wire_->rank();
    const std::uint8_t* const message = is_own ? sent_.const_data_ptr<std::uint8_t>() : transfer_->from(rank);
    Header header;
    std::memcpy(&header, message, sizeof header);
    if (header != own_header()) {
      fail(ErrorCode::communication, "deepcompile.gradient_order", "rank ", wire_->rank(),
           " ends the backward pass of ", "graph ", graph_id_, ", of ", ids_.size(), " parameters, and rank ", rank,
           " does something else: let all ",
           "ranks run the same graphs; the process group and the engine must be rebuilt");
    }
    for (std::size_t i = 0; i < ids_.size(); ++i) {
      const bool had = has_bit(message + sizeof header, 2 * i);
      flags.some[i] = flags.some[i] || had;
      flags.all[i] = flags.all[i] && had;
      flags.beside[i] = flags.beside[i] || has_bit(message + sizeof header, 2 * i + 1);
    }
  }
  return flags;
}

/// Notes what the order is to leave out: what a rank has lacked once, because it may lack it again, and what has come
/// twice after its zeros, which costs a second transfer. Returns whether something has come so: the order has changed.
bool GradientOrder::note_unsteady(const RankFlags& flags) {
  bool has_changed = false;
  for (const long id : order_) {
    const std::size_t index = indices_.at(id);
    const bool is_late = flags.beside[index], is_late_again = is_late && !late_.insert(id).second;
    if (!flags.all[index] || is_late_again) unsteady_.insert(id);
    has_changed = has_changed || is_late;
  }
  return has_changed;
}

void GradientOrder::learn(const RankFlags& flags) {
  const bool has_changed = !has_learned_ || note_unsteady(flags);
  std::unordered_set<long> expected;
  for (const long id : ids_) {
    if (flags.all[indices_.at(id)] && !unsteady_.contains(id)) expected.insert(id);
  }
  const bool is_same =
      order_.size() == expected.size() && std::ranges::all_of(order_, [&](long id) { return expected.contains(id); });
  if (is_same && !has_changed) return;
  has_learned_ = true;
  order_ = arrivals_of_first_rank();
  std::erase_if(order_, [&](long id) { return !expected.contains(id); });
}

std::vector<long> GradientOrder::arrivals_of_first_rank() {
  std::vector<std::int64_t> rank_0s(ids_.size(), -1);
  std::ranges::copy(arrivals_, rank_0s.begin());
  broadcast_from_rank_0(*wire_, rank_0s);
  std::vector<long> arrivals;
  for (const std::int64_t id : rank_0s) {
    if (id >= 0) arrivals.push_back(static_cast<long>(id));
  }
  return arrivals;
}

}  // namespace octavo::dc
