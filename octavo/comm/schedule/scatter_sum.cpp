// SPDX-License-Identifier: Apache-2.0
#include "octavo/comm/schedule/scatter_sum.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cstring>
#include <numeric>

#include "octavo/comm/schedule/float_part.h"
#include "octavo/comm/schedule/gradient_power.h"
#include "octavo/comm/schedule/messages.h"
#include "octavo/device/dispatch.h"
#include "octavo/device/scratch.h"

namespace octavo {

namespace {

/// Returns another key for each of the two ways, so that they draw different bits.
std::uint64_t rounding_key_of_way(const Contribution& tensor, Way way) {
  return rules::derive_key(tensor.rounding_key, static_cast<std::uint64_t>(way));
}

/// Returns the bytes of the header and of what follows it: one float per tensor, the mean square of the sender's
/// gradient.
std::uint64_t header_bytes(std::size_t tensors) { return sizeof(MessageHeader) + sizeof(float) * tensors; }

}  // namespace

void ScatterSum::begin(std::span<const Contribution> tensors, std::uint64_t digest) {
  tensors_ = tensors;
  digest_ = digest;
  power_ = gradient_powers(tensors_, device_, chunk_powers_);
  messages_ = cut(tensors_, Way::up, wire_.world_size(), header_bytes(tensors_.size()));
  packs_ = packs(tensors_, Way::up, wire_.world_size());
  if (stays_here()) return;
  for (std::size_t t = 0; t < tensors_.size(); ++t) tensors_[t].memory->begin(device_, tensors_[t], power_[t]);
  if (wire_.world_size() == 1) return;
  wire_.reserve_to_send(sent_, bytes_without(sizes(messages_), wire_.rank()), device_);
  const bool encodes_own = std::any_of(tensors_.begin(), tensors_.end(), [](const auto& one) { return one.codes_own; });
  if (encodes_own) reserve_on_host(to_itself_, own().bytes, device_);
  const std::vector<PlacedMessage> out = outgoing();
  encode_all(out);
  wait_for_current_stream(device_);
  if (packs_) return packed_.send_sizes(out, tensors_.size(), digest_);
  for (const PlacedMessage& to_owner : out) {
    if (to_owner.message != &own()) seal(to_owner.bytes, sealed(to_owner.message->bytes), digest_);
  }
  const std::vector<std::uint64_t> received(messages_.size(), own().bytes);
  transfer_ = exchange_with_others(wire_, device_, sent_, sizes(messages_), got_, received);
}

bool ScatterSum::stays_here() const {
  return wire_.world_size() == 1 && std::all_of(tensors_.begin(), tensors_.end(), [](const Contribution& tensor) {
           return tensor.up->traits().keeps_magnitude && !tensor.memory->acts_alone();
         });
}

void ScatterSum::advance() {
  std::vector<PlacedMessage> incoming;
  reserve_on_host(got_, own().bytes * (messages_.size() - 1), device_);
  for (int rank = 0; rank < wire_.world_size(); ++rank) {
    incoming.push_back({&own(), rank == wire_.rank() ? nullptr : received_from(rank)});
  }
  packed_.send(incoming);
}

void ScatterSum::wait() {
  if (packs_) packed_.receive();
  if (transfer_) transfer_->wait();
  if (!packs_) {
    for (const int sender : wire_.others()) {
      require_sealed(received_from(sender), sealed(own().bytes), digest_, wire_, sender);
    }
  }
  merge_powers();
}

std::uint64_t ScatterSum::sealed(std::uint64_t bytes) const {
  return sealed_bytes(tensors_, Way::up, header_bytes(tensors_.size()), bytes);
}

void ScatterSum::encode_all(std::span<const PlacedMessage> out) {
  pieces_.clear();
  for (const auto& [to_owner, message] : out) {
    const bool is_own = to_owner == &own();
    if (!is_own) std::memcpy(message + sizeof(MessageHeader), power_.data(), sizeof(float) * power_.size());
    for (const Piece& piece : to_owner->pieces) {
      if (is_own && !tensors_[piece.tensor].codes_own) continue;
      const Contribution& tensor = tensors_[piece.tensor];
      pieces_.add(tensor, {&piece, wire_.rank(), message}, tensor.memory->granule());
    }
  }
  pieces_.for_each([&](const PlacedPiece& placed, Range part) { encode_part(placed, part); });
}

/// Returns the messages and their places, by owner. This rank's own message is not sent.
std::vector<PlacedMessage> ScatterSum::outgoing() const {
  std::vector<PlacedMessage> placed;
  std::uint8_t* message = sent_.mutable_data_ptr<std::uint8_t>();
  for (const Message& to_owner : messages_) {
    const bool is_own = &to_owner == &own();
    placed.push_back({&to_owner, is_own ? to_itself() : message});
    if (!is_own) message += to_owner.bytes;
  }
  return placed;
}

void ScatterSum::encode_part(const PlacedPiece& placed, Range part) const {
  const Contribution& tensor = tensors_[placed.piece->tensor];
  const SentPart sent = tensor.sent(Way::up, placed.sender, *placed.piece, part, placed.message, device_);
  const FloatPart gradient(device_, tensor, sent.first(), sent.count());
  EncodeInput input = tensor.input(sent.first(), gradient.load());
  input.rounding_key = rounding_key_of_way(tensor, sent.way);
  tensor.memory->encode(sent, input);
}

void ScatterSum::merge_powers() {
  std::vector<float> powers(static_cast<std::size_t>(wire_.world_size()));
  for (std::size_t t = 0; t < power_.size(); ++t) {
    powers[static_cast<std::size_t>(wire_.rank())] = power_[t];
    for (const int sender : wire_.others()) {
      float& power = powers[static_cast<std::size_t>(sender)];
      std::memcpy(&power, received_from(sender) + sizeof(MessageHeader) + t * sizeof power, sizeof power);
    }
    power_[t] = mean_power(powers);
  }
}

void ScatterSum::reduce(double divisor, std::span<const Piece> down, std::uint8_t* out) {
  scratch_.resize(static_cast<std::size_t>(at::get_num_threads()));
  const std::vector<Piece>& up = own().pieces;
  parts_.clear();
  for (std::size_t p = 0; p < down.size(); ++p) {
    const std::uint64_t of_codecs = std::lcm(up[p].codec->traits().granule, down[p].codec->traits().granule);
    const std::uint64_t of_memory = tensors_[down[p].tensor].memory->granule();
    parts_.add(device_, down[p].range.count, std::lcm(of_codecs, of_memory), Parts::kSummed);
  }
  const auto passes = static_cast<std::uint64_t>(wire_.world_size());
  parts_.for_each(device_, passes, [&](const Parts::Part& part) {
    Scratch& scratch = scratch_[static_cast<std::size_t>(at::get_thread_num())];
    reduce_part(divisor, up[part.piece], down[part.piece], part.range, out, scratch);
  });
  wait_for_current_stream(device_);
  transfer_.reset();
}

void ScatterSum::reduce_part(double divisor, const Piece& up, const Piece& down, Range part, std::uint8_t* out,
                             Scratch& scratch) const {
  const Contribution& tensor = tensors_[down.tensor];
  const bool votes = !up.codec->traits().keeps_magnitude;
  const SentPart sent = tensor.sent(Way::down, wire_.rank(), down, part, out, device_);
  const FloatPart gradient(device_, tensor, sent.first(), sent.count());
  EncodeInput input{};
  if (tensor.over_hits && wire_.world_size() > 1) {
    input = mean_over_hits(divisor, up, part, scratch);
  } else {
    const bool takes_code = tensor.codes_own && wire_.world_size() > 1;
    input = takes_code ? own_code(tensor, up, part, scratch) : tensor.input(sent.first(), gradient.load());
    if (votes) input = own_votes(tensor, input, up, part, scratch);
    input.others = sum_of_others(up, part, scratch);
    input.sum_weight = 1.0F / static_cast<float>(divisor);
  }
  input.rounding_key = rounding_key_of_way(tensor, sent.way);
  tensor.memory->encode(sent, input);
}

/// Returns this rank's votes for its own range as signs. Its contribution there is not sent and would be taken as it
/// is, but a vote is a sign everywhere.
EncodeInput ScatterSum::own_votes(const Contribution& tensor, const EncodeInput& input, const Piece& piece, Range part,
                                  Scratch& scratch) const {
  const std::uint64_t bytes = piece.codec->payload_bytes(part.count);
  const PayloadPart votes = {reserve_on_device(scratch.votes, bytes, device_),
                             part.count,
                             {0, part.count},
                             tensor.range_key(piece.range.first)};
  auto* signs = reserve_on_device<float>(scratch.values, part.count, device_);
  piece.codec->encode(device_, input, votes, nullptr);
  piece.codec->decode(device_, votes, Store::assign, signs, nullptr);
  return {signs};
}

/// Returns what the others would decode of this rank's own code.
EncodeInput ScatterSum::own_code(const Contribution& tensor, const Piece& piece, Range part, Scratch& scratch) const {
  auto* values = reserve_on_device<float>(scratch.values, part.count, device_);
  const SentPart sent = tensor.sent(Way::up, wire_.rank(), piece, part, to_itself(), device_);
  tensor.memory->decode(sent, Store::assign, values, nullptr);
  EncodeInput input{values};
  input.first = piece.range.first + part.first;
  return input;
}

/// Returns the mean over hits of all ranks, added up in their order.
EncodeInput ScatterSum::mean_over_hits(double divisor, const Piece& piece, Range part, Scratch& scratch) const {
  const LaunchScope scope(device_);
  const auto floats = [&](at::Tensor& buffer) { return reserve_on_device<float>(buffer, part.count, device_); };
  float *const sum = floats(scratch.sum), *const values = floats(scratch.values), *const hits = floats(scratch.hits);
  const Contribution& tensor = tensors_[piece.tensor];
  for (int rank = 0; rank < wire_.world_size(); ++rank) {
    std::uint8_t* const message = rank == wire_.rank() ? to_itself() : received_from(rank);
    const SentPart sent = tensor.sent(Way::up, rank, piece, part, message, device_);
    tensor.memory->decode(sent, Store::assign, values, nullptr);
    scope.kernels().add_hits(scope.queue(), values, part.count, rank == 0 ? Store::assign : Store::add, sum, hits);
  }
  const auto weight = static_cast<float>(wire_.world_size() / divisor);
  scope.kernels().divide_by_hits(scope.queue(), hits, weight, part.count, sum);
  EncodeInput mean{sum};
  mean.first = piece.range.first + part.first;
  return mean;
}

/// Returns null where there are no others.
const float* ScatterSum::sum_of_others(const Piece& piece, Range part, Scratch& scratch) const {
  if (wire_.world_size() == 1) return nullptr;
  auto* sum = reserve_on_device<float>(scratch.sum, part.count, device_);
  const Contribution& tensor = tensors_[piece.tensor];
  Store how = Store::assign;
  for (const int sender : wire_.others()) {
    const SentPart sent = tensor.sent(Way::up, sender, piece, part, received_from(sender), device_);
    tensor.memory->decode(sent, how, sum, nullptr);
    how = Store::add;
  }
  return sum;
}

std::uint8_t* ScatterSum::received_from(int sender) const {
  if (transfer_) return transfer_->from(sender);
  const int place = sender - (sender > wire_.rank() ? 1 : 0);  // this rank sent nothing to itself
  return got_.mutable_data_ptr<std::uint8_t>() + static_cast<std::uint64_t>(place) * own().bytes;
}

/// Returns null until a bucket has had a tensor of whose own range this rank sends codes to itself.
std::uint8_t* ScatterSum::to_itself() const {
  return to_itself_.defined() ? to_itself_.mutable_data_ptr<std::uint8_t>() : nullptr;
}

}  // namespace octavo
