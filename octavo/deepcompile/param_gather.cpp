// SPDX-License-Identifier: Apache-2.0
#include "octavo/deepcompile/param_gather.h"

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <utility>

#include "octavo/codec/bits_coding.h"
#include "octavo/codec/block_coding.h"
#include "octavo/comm/ownership.h"
#include "octavo/deepcompile/error_context.h"
#include "octavo/deepcompile/rooms_of_call.h"
#include "octavo/deepcompile/text.h"
#include "octavo/device/stream_event.h"
#include "octavo/kernels/error.h"
#include "octavo/rules/counter_random.h"

namespace octavo::dc {

/// Parameters that are gathered in one transfer.
struct ParamGather::Flight {
  std::uint64_t number;  // of the flights that were started before it
  c10::Device device;
  std::vector<long> ids;
  std::unique_ptr<GatherShards> schedule;
  bool has_arrived = false;
};

namespace {

constexpr const char* kGatherWhere = "deepcompile.param_gather";
/// A flight is waited for before so many others are started after it, also one that nobody has waited for. Each takes
/// up a place in memory that ranks share, and places are used in turn.
constexpr std::uint64_t kMostFlights = 64;

/// Gathers doubles as floats that hold their bits: an owner has both halves of its elements.
Contribution halves_of_doubles(const at::Tensor& whole) {
  static const BitsCoding kBits;
  const auto count = static_cast<std::uint64_t>(whole.numel());
  return GatherShards::tensor(whole.mutable_data_ptr(), 2 * count, at::kFloat, kBits, Ownership{2});
}

}  // namespace

ParamGather::ParamGather(std::unique_ptr<Wire> wire, std::shared_ptr<DSParamRegistry> registry,
                         std::uint64_t most_elements, CodecPtr codec, std::shared_ptr<const Flags> flags)
    : wire_(std::move(wire)),
      registry_(std::move(registry)),
      most_elements_(most_elements),
      codec_(std::move(codec)),
      flags_(std::move(flags)) {}

ParamGather::~ParamGather() = default;

std::vector<at::ScalarType> ParamGather::dtypes_of(std::span<const long> ids,
                                                   std::span<const at::ScalarType> dtypes) const {
  if (!dtypes.empty() && dtypes.size() != ids.size()) {
    fail(ErrorCode::invalid_argument, kGatherWhere, "expected a dtype for each of ", ids.size(),
         " parameters, or none, got ", dtypes.size());
  }
  std::vector<at::ScalarType> wanted(dtypes.begin(), dtypes.end());
  if (dtypes.empty()) {
    for (const long id : ids) wanted.push_back(registry_->getParam(id).getDtype());
  }
  return wanted;
}

bool ParamGather::has(long id, at::ScalarType dtype) const {
  if (!registry_->isThereOrComing(id)) return false;
  const at::ScalarType gathered = registry_->getGatheredParam(id).scalar_type();
  return gathered == dtype || gathered == registry_->getParam(id).getDtype();
}

void ParamGather::start(std::span<const long> ids, std::span<const at::ScalarType> dtypes) {
  const std::vector<at::ScalarType> all = dtypes_of(ids, dtypes);
  std::vector<Wanted> needed;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (has(ids[i], all[i])) continue;
    if (const auto same = std::ranges::find(needed, ids[i], &Wanted::id); same != needed.end()) {
      if (same->dtype != all[i]) same->dtype = registry_->getParam(ids[i]).getDtype();  // from which both are made
      continue;
    }
    wait(ids[i]);  // it may be on its way in another dtype
    needed.push_back({ids[i], all[i]});
  }
  std::vector<long> firsts;  // the first parameter of each flight
  for (std::size_t begin = 0, end = 0; begin < needed.size(); begin = end) {
    std::uint64_t elements = 0;
    for (; end < needed.size(); ++end) {
      elements += productDim(registry_->getParam(needed[end].id).getShape());
      if (end > begin && elements > most_elements_) break;
    }
    if (firsts.size() >= 2) wait(firsts[firsts.size() - 2]);
    try {
      start_flight(std::span(needed).subspan(begin, end - begin));
    } catch (...) {
      end_flights(firsts);
      throw;
    }
    firsts.push_back(needed[begin].id);
  }
}

/// Waits for flights whose call has failed, perhaps for lack of memory: its caller frees what they write to. What
/// cannot be waited for stays in flight.
void ParamGather::end_flights(const std::vector<long>& firsts) {
  for (const long first : firsts) {
    try {
      wait(first);
    } catch (...) {  // the error of the call says more
    }
  }
}

/// Starts one transfer.
void ParamGather::start_flight(std::span<const Wanted> needed) {
  if (!flights_.empty() && started_ - flights_.front()->number >= kMostFlights) wait(flights_.front()->ids.front());
  const c10::InferenceMode kept_for_training(false);  // what is allocated here outlives an evaluation
  std::vector<Contribution> tensors;
  std::uint64_t digest = rules::derive_key(started_ + 1, needed.size());
  const c10::Device device = registry_->getParam(needed.front().id).getDevice();
  std::vector<long> ids;
  RoomsOfCall rooms(*registry_);
  for (const auto& [id, dtype] : needed) {
    const at::Tensor whole = make_room(registry_->getParam(id), dtype);
    const bool is_kept = registry_->hasGatheredParam(id) && registry_->getGatheredParam(id).is_same(whole);
    rooms.add(id, whole, /*made_here=*/!is_kept);
    ids.push_back(id);
    tensors.push_back(contribution(whole));
    digest = rules::derive_key(digest, static_cast<std::uint64_t>(id));
    digest = rules::derive_key(digest, static_cast<std::uint64_t>(whole.numel()));
    digest = rules::derive_key(digest, tensors.back().up->fingerprint());
  }
  if (flags_->sync_before_allgather) synchronize(device);
  auto schedule = take_schedule(device);
  with_context([&] { return context(ids); }, [&] { schedule->begin(std::move(tensors), digest); });
  for (const long id : ids) registry_->beginGather(id);
  rooms.keep();
  flights_.push_back(std::make_unique<Flight>(Flight{started_, device, std::move(ids), std::move(schedule)}));
  ++started_;  // only now: where there was no memory, the same gather may be started again
  if (!flags_->sync_after_allgather) return;
  wait(flights_.back()->ids.front());
  synchronize(device);
}

/// Returns memory for the whole values, in which this rank's own are already. Uses what the parameter has kept, where
/// that has the dtype and exactly the elements, in row-major order.
at::Tensor ParamGather::make_room(const DSParam& param, at::ScalarType dtype) const {
  const long id = param.getId();
  if (!param.isPartitioned()) return registry_->getGatheredParam(id);  // this rank's part was changed in its place
  const std::uint64_t count = productDim(param.getShape());
  const at::Tensor kept = registry_->hasGatheredParam(id) ? registry_->getGatheredParam(id) : at::Tensor();
  const bool is_fit = kept.defined() && kept.scalar_type() == dtype && kept.is_contiguous() &&
                      static_cast<std::uint64_t>(kept.numel()) == count;
  const at::Tensor shard = param.getDSTensor();
  at::Tensor whole = is_fit ? kept : at::empty(param.getShape(), at::dtype(dtype).device(param.getDevice()));
  const Range own = owned_range(count, wire_->rank(), wire_->world_size(), Ownership::equal_ranges());
  if (static_cast<std::uint64_t>(shard.numel()) < own.count) {
    fail(ErrorCode::invalid_argument, kGatherWhere, "expected a shard of parameter ", id, " with ", own.count,
         " elements, which rank ", wire_->rank(), " of ", wire_->world_size(), " owns of [",
         join_as_str(param.getShape(), ", "), "], got ", shard.numel());
  }
  const auto first = static_cast<std::int64_t>(own.first), size = static_cast<std::int64_t>(own.count);
  whole.view(-1).narrow(0, first, size).copy_(shard.flatten().narrow(0, 0, size), /*non_blocking=*/true);
  return whole;
}

Contribution ParamGather::contribution(const at::Tensor& whole) const {
  if (!codec_ && whole.scalar_type() == at::kDouble) return halves_of_doubles(whole);
  const Codec& exact = exact_coding(whole.scalar_type());
  Contribution all = GatherShards::tensor(whole.mutable_data_ptr(), static_cast<std::uint64_t>(whole.numel()),
                                          whole.scalar_type(), codec_ ? *codec_ : exact, Ownership::equal_ranges());
  if (wire_->world_size() == 1) all.up = all.down = &exact;  // nothing is sent, and nothing is left out
  return all;
}

std::unique_ptr<GatherShards> ParamGather::take_schedule(c10::Device device) {
  const auto found = std::ranges::find(idle_, device, &decltype(idle_)::value_type::first);
  if (found == idle_.end()) return std::make_unique<GatherShards>(*wire_, device);
  auto schedule = std::move(found->second);
  idle_.erase(found);
  return schedule;
}

void ParamGather::wait(long id) {
  if (registry_->state(id) != Gathered::in_flight) return;
  const auto found =
      std::ranges::find_if(flights_, [&](const auto& flight) { return std::ranges::count(flight->ids, id) > 0; });
  if (found == flights_.end()) {
    fail(ErrorCode::communication, kGatherWhere, "the transfer of parameter ", id, " has failed before; ",
         "the process group and the engine must be rebuilt");
  }
  Flight& flight = **found;
  const c10::InferenceMode kept_for_training(false);
  try {
    if (!flight.has_arrived) with_context([&] { return context(flight.ids); }, [&] { flight.schedule->wait(); });
  } catch (...) {
    flights_.erase(found);
    throw;
  }
  flight.has_arrived = true;
  flight.schedule->decode_all();  // where there is no memory for it, a later call decodes
  for (const long gathered : flight.ids) registry_->endGather(gathered);
  idle_.emplace_back(flight.device, std::move(flight.schedule));
  flights_.erase(found);
}

std::string ParamGather::context(const std::vector<long>& ids) const {
  std::vector<std::string> names;
  for (const long id : ids) names.push_back(registry_->nameOf(id));
  return "the gather of " + join_as_str(names, ", ", 200);
}

void ParamGather::wait_all() {
  while (!flights_.empty()) wait(flights_.front()->ids.front());
}

}  // namespace octavo::dc
