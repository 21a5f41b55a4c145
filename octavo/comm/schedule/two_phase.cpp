// SPDX-License-Identifier: Apache-2.0
#include "octavo/comm/schedule/two_phase.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <limits>
#include <numeric>
#include <utility>

#include "octavo/codec/coding.h"
#include "octavo/comm/schedule/gradient_power.h"
#include "octavo/rules/compensate.h"
#include "octavo/rules/float_bits.h"

namespace octavo {

namespace {

const c10::Device kCpu = c10::kCPU;

class Stopwatch {
 public:
  /// Adds the seconds since the last lap to `total`.
  void lap(double& total) {
    const auto now = std::chrono::steady_clock::now();
    total += std::chrono::duration<double>(now - last_).count();
    last_ = now;
  }

 private:
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
};

/// A float a tensor: the mean square of the sender's gradient.
std::uint64_t header_bytes(std::size_t tensors) { return sizeof(float) * tensors; }

/// How many blocks are added up at a time: some 64 Ki elements, whose sum stays in L2 beside what else is read.
std::uint64_t parts_of(Format up, Format down) {
  constexpr std::uint64_t kPart = 1U << 16;
  return std::max<std::uint64_t>(1, kPart / std::max(up.block, down.block));
}

/// What a rank has to say of a tensor from element `first` on, without what it could not say before.
EncodeInput input_of(const Contribution& tensor, std::uint64_t first) {
  return EncodeInput{tensor.values,         nullptr, tensor.momentum, tensor.preconditioner, tensor.gradient_weight,
                     tensor.momentum_weight}
      .from(first);
}

/// The result of a tensor that need not cross the wire.
void combine(const Contribution& tensor) {
  const EncodeInput in = input_of(tensor, 0);
  for (std::uint64_t i = 0; i < tensor.count; ++i) {
    tensor.values[i] = rules::compensate(in.gradient_weight, in.gradient[i], in.momentum ? in.preconditioner[i] : 1.0F,
                                         in.momentum_weight, in.momentum ? in.momentum[i] : 0.0F, 0.0F);
  }
}

std::uint8_t* reserve(at::Tensor& buffer, std::uint64_t bytes) {
  const auto size = static_cast<std::int64_t>(bytes);
  if (!buffer.defined() || buffer.numel() < size) buffer = at::empty({size}, at::kByte);
  return buffer.mutable_data_ptr<std::uint8_t>();
}

std::vector<std::uint64_t> sizes(const std::vector<Message>& messages) {
  std::vector<std::uint64_t> bytes;
  for (const Message& message : messages) bytes.push_back(message.bytes);
  return bytes;
}

/// The same for each rank, but none for this one.
std::vector<std::uint64_t> none_to_self(std::vector<std::uint64_t> bytes, int rank) {
  bytes[static_cast<std::size_t>(rank)] = 0;
  return bytes;
}

std::uint64_t total(const std::vector<std::uint64_t>& bytes) {
  return std::accumulate(bytes.begin(), bytes.end(), std::uint64_t{0});
}

at::Tensor prefix(const at::Tensor& buffer, std::uint64_t bytes) {
  return buffer.narrow(0, 0, static_cast<std::int64_t>(bytes));
}

std::vector<Message> cut_for(const std::vector<Contribution>& tensors, Format Contribution::* format, int world_size,
                             std::uint64_t header) {
  std::vector<TensorFormat> formats;
  for (const Contribution& tensor : tensors) formats.push_back({tensor.count, tensor.*format});
  return cut(formats, world_size, header);
}

}  // namespace

void TwoPhase::send_up(std::vector<Contribution> tensors) {
  tensors_ = std::move(tensors);
  power_.clear();
  for (const Contribution& tensor : tensors_) power_.push_back(gradient_power(tensor.values, tensor.count));
  if (stays_here()) return;
  Stopwatch watch;
  up_ = cut_for(tensors_, &Contribution::up, wire_.world_size(), header_bytes(tensors_.size()));
  down_ = cut_for(tensors_, &Contribution::down, wire_.world_size(), 0);
  encode_all();
  const auto send_bytes = none_to_self(sizes(up_), wire_.rank());
  const auto receive_bytes = none_to_self(std::vector(up_.size(), own(up_).bytes), wire_.rank());
  reserve(got_up_, total(receive_bytes));
  at::Tensor send = prefix(sent_up_, total(send_bytes)), receive = prefix(got_up_, total(receive_bytes));
  transfer_ = wire_.exchange(send, send_bytes, receive, receive_bytes);
  watch.lap(seconds_.encode);
}

void TwoPhase::send_down(float result_weight) {
  if (stays_here()) return;
  Stopwatch watch;
  transfer_->wait();
  watch.lap(seconds_.wait_up);
  merge_powers();
  reduce_own(result_weight);
  const auto receive_bytes = none_to_self(sizes(down_), wire_.rank());
  const auto send_bytes = none_to_self(std::vector(down_.size(), own(down_).bytes), wire_.rank());
  reserve(got_down_, total(receive_bytes));
  at::Tensor send = prefix(sent_down_, total(send_bytes)), receive = prefix(got_down_, total(receive_bytes));
  transfer_ = wire_.exchange(send, send_bytes, receive, receive_bytes);
  watch.lap(seconds_.reduce);
}

Outcome TwoPhase::finish() {
  if (stays_here()) return finish_here();
  Stopwatch watch;
  transfer_->wait();
  watch.lap(seconds_.wait_down);
  const bool finite = decode_all();
  watch.lap(seconds_.decode);
  return {finite, power_};
}

/// With one rank nothing crosses a wire and nothing is encoded, unless the plan votes: even one rank's vote is a sign.
bool TwoPhase::stays_here() const {
  return wire_.world_size() == 1 && std::none_of(tensors_.begin(), tensors_.end(), [](const Contribution& tensor) {
           return tensor.up.codec == Codec::ballot;
         });
}

Outcome TwoPhase::finish_here() {
  bool finite = true;
  for (const Contribution& tensor : tensors_) {
    combine(tensor);
    for (std::uint64_t i = 0; i < tensor.count; ++i) finite &= rules::is_finite(tensor.values[i]);
  }
  return {finite, power_};
}

const Message& TwoPhase::own(const std::vector<Message>& messages) const {
  return messages[static_cast<std::size_t>(wire_.rank())];
}

std::uint8_t* TwoPhase::received_from(int sender) {
  const int place = sender - (sender > wire_.rank() ? 1 : 0);  // nothing came from this rank itself
  return got_up_.mutable_data_ptr<std::uint8_t>() + static_cast<std::uint64_t>(place) * own(up_).bytes;
}

void TwoPhase::encode_all() {
  std::uint8_t* message_bytes = reserve(sent_up_, total(sizes(up_)));
  for (const Message& message : up_) {
    if (&message == &own(up_)) continue;
    std::memcpy(message_bytes, power_.data(), header_bytes(power_.size()));
    for (const Piece& piece : message.pieces) encode_piece(piece, message_bytes + piece.offset);
    message_bytes += message.bytes;
  }
}

void TwoPhase::encode_piece(const Piece& piece, std::uint8_t* out) {
  const Contribution& tensor = tensors_[piece.tensor];
  EncodeInput input = input_of(tensor, piece.range.first);
  rules::Residual* next = nullptr;
  if (tensor.worker) {
    const Sent sent = sent_part(tensor.count, wire_.rank(), wire_.world_size());
    const std::uint64_t at = sent.index(piece.range.first);
    if (tensor.worker->now()) input.residual = tensor.worker->now() + at;
    next = tensor.worker->next(sent.count) + at;
  }
  encode(kCpu, piece.format, input, piece.range.count, piece.format.payload(out, piece.range.count), next);
}

void TwoPhase::merge_powers() {
  const std::vector<float> own_power = power_;
  std::vector<float> powers(static_cast<std::size_t>(wire_.world_size()));
  for (std::size_t t = 0; t < power_.size(); ++t) {
    for (int rank = 0; rank < wire_.world_size(); ++rank) {
      float& power = powers[static_cast<std::size_t>(rank)];
      power = own_power[t];
      if (rank != wire_.rank()) std::memcpy(&power, received_from(rank) + t * sizeof power, sizeof power);
    }
    power_[t] = mean_power(powers);
  }
}

void TwoPhase::reduce_own(float result_weight) {
  const Message& result = own(down_);
  const std::uint64_t receivers = std::max<std::uint64_t>(1, down_.size() - 1);
  std::uint8_t* out = reserve(sent_down_, result.bytes * receivers);
  for (std::size_t p = 0; p < result.pieces.size(); ++p) {
    reduce_piece(own(up_).pieces[p], result.pieces[p].format, out + result.pieces[p].offset, result_weight);
  }
  for (std::uint64_t receiver = 1; receiver < receivers; ++receiver) {
    std::memcpy(out + receiver * result.bytes, out, result.bytes);
  }
}

/// Adds up one own range and encodes the sum, part by part: a sum is read again while it is still in the cache.
void TwoPhase::reduce_piece(const Piece& piece, Format down, std::uint8_t* out, float result_weight) {
  const std::uint64_t count = piece.range.count;
  Residual* residual = tensors_[piece.tensor].owner;
  rules::Residual* next = residual ? residual->next(count) : nullptr;
  const std::uint64_t part = std::max(piece.format.block, down.block) * parts_of(piece.format, down);
  auto* sum = reinterpret_cast<float*>(reserve(sum_, std::min(part, count) * sizeof(float)));
  for (std::uint64_t first = 0; first < count; first += part) {
    const std::uint64_t size = std::min(part, count - first);
    take_own(piece, first, size, sum);
    for (int sender = 0; sender < wire_.world_size(); ++sender) {
      if (sender == wire_.rank()) continue;
      const Payload payload = piece.format.payload(received_from(sender) + piece.offset, count);
      decode(kCpu, piece.format, piece.format.from(payload, first), size, Store::add, sum);
    }
    const EncodeInput input{sum, residual && residual->now() ? residual->now() + first : nullptr, nullptr, nullptr,
                            result_weight};
    encode(kCpu, down, input, size, down.from(down.payload(out, count), first), next ? next + first : nullptr);
  }
}

/// What this rank has to say of its own range does not travel, and is taken as it is; but a vote is a sign everywhere.
void TwoPhase::take_own(const Piece& piece, std::uint64_t first, std::uint64_t size, float* sum) {
  const EncodeInput input = input_of(tensors_[piece.tensor], piece.range.first + first);
  if (piece.format.codec == Codec::ballot) {
    std::uint8_t* bytes = reserve(own_votes_, piece.format.payload_bytes(size));
    encode(kCpu, piece.format, input, size, piece.format.payload(bytes, size), nullptr);
    decode(kCpu, piece.format, piece.format.payload(bytes, size), size, Store::assign, sum);
  } else {  // the codes of float32 are the values
    encode(kCpu, default_format(Codec::fp32), input, size, {nullptr, reinterpret_cast<std::uint8_t*>(sum)}, nullptr);
  }
}

bool TwoPhase::decode_all() {
  bool finite = true;
  auto* got = got_down_.mutable_data_ptr<std::uint8_t>();
  for (const Message& message : down_) {
    const bool is_own = &message == &own(down_);
    finite &= decode_message(message, is_own ? sent_down_.mutable_data_ptr<std::uint8_t>() : got);
    if (!is_own) got += message.bytes;
  }
  for (std::size_t t = 0; t < tensors_.size(); ++t) {
    if (power_[t] == 0) combine(tensors_[t]);
  }
  return finite;
}

bool TwoPhase::decode_message(const Message& message, std::uint8_t* bytes) {
  bool finite = true;
  for (const Piece& piece : message.pieces) {
    if (power_[piece.tensor] == 0) continue;
    std::uint8_t* payload = bytes + piece.offset;
    finite &= payload_is_finite(piece.format, payload, piece.range.count);
    decode(kCpu, piece.format, piece.format.payload(payload, piece.range.count), piece.range.count, Store::stream,
           tensors_[piece.tensor].values + piece.range.first);
  }
  return finite;
}

}  // namespace octavo
