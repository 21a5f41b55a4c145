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

constexpr std::uint64_t kPowerChunk = 256;
/// From this size on a gradient's power is taken from every 32nd chunk: a scale needs no more, and memory is slow.
constexpr std::uint64_t kSampledCount = 1U << 16;

bool any_nonzero(const float* values, std::uint64_t count) {
  for (std::uint64_t first = 0; first < count; first += kPowerChunk) {
    std::uint32_t seen = 0;
    for (std::uint64_t i = first; i < std::min(count, first + kPowerChunk); ++i) {
      seen |= rules::magnitude_bits(values[i]);
    }
    if (seen != 0) return true;
  }
  return false;
}

/// The mean square; 0 for zeros alone.
float power_of(const float* values, std::uint64_t count) {
  const std::uint64_t stride = count < kSampledCount ? kPowerChunk : 32 * kPowerChunk;
  double sum = 0;
  std::uint64_t taken = 0;
  for (std::uint64_t first = 0; first < count; first += stride) {
    const std::uint64_t size = std::min(count - first, kPowerChunk);
    float lanes[16] = {};  // a chain of additions would wait for each; sixteen run at once
    for (std::uint64_t i = 0; i < size; i += 16) {
      const std::uint64_t row = std::min<std::uint64_t>(16, size - i);
      for (std::uint64_t j = 0; j < row; ++j) lanes[j] += values[first + i + j] * values[first + i + j];
    }
    for (const float lane : lanes) sum += static_cast<double>(lane);
    taken += size;
  }
  const float power = taken == 0 ? 0.0F : static_cast<float>(sum / static_cast<double>(taken));
  if (power != 0) return power;
  return any_nonzero(values, count) ? std::numeric_limits<float>::denorm_min() : 0.0F;
}

/// How many blocks are added up at a time: some 64 Ki elements, whose sum stays in L2 beside what else is read.
std::uint64_t parts_of(Format up, Format down) {
  constexpr std::uint64_t kPart = 1U << 16;
  return std::max<std::uint64_t>(1, kPart / std::max(up.block, down.block));
}

/// The result of a tensor that need not cross the wire.
void combine(const Contribution& tensor) {
  for (std::uint64_t i = 0; i < tensor.count; ++i) {
    tensor.values[i] =
        rules::compensate(tensor.gradient_weight, tensor.values[i], tensor.momentum ? tensor.preconditioner[i] : 1.0F,
                          tensor.momentum_weight, tensor.momentum ? tensor.momentum[i] : 0.0F, 0.0F);
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
  for (const Contribution& tensor : tensors_) power_.push_back(power_of(tensor.values, tensor.count));
  if (stays_here()) return;
  Stopwatch watch;
  up_ = cut_for(tensors_, &Contribution::up, wire_.world_size(), header_bytes(tensors_.size()));
  down_ = cut_for(tensors_, &Contribution::down, wire_.world_size(), 0);
  encode_all();
  const auto send_bytes = sizes(up_);
  const std::vector<std::uint64_t> receive_bytes(up_.size(), send_bytes[static_cast<std::size_t>(wire_.rank())]);
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
  const auto receive_bytes = sizes(down_);
  const std::vector<std::uint64_t> send_bytes(down_.size(), receive_bytes[static_cast<std::size_t>(wire_.rank())]);
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

void TwoPhase::encode_all() {
  std::uint8_t* message_bytes = reserve(sent_up_, total(sizes(up_)));
  for (const Message& message : up_) {
    std::memcpy(message_bytes, power_.data(), header_bytes(power_.size()));
    for (const Piece& piece : message.pieces) {
      const Contribution& tensor = tensors_[piece.tensor];
      const EncodeInput input{tensor.values,          tensor.worker ? tensor.worker->now() : nullptr,
                              tensor.momentum,        tensor.preconditioner,
                              tensor.gradient_weight, tensor.momentum_weight};
      rules::Residual* next = tensor.worker ? tensor.worker->next(tensor.count) + piece.range.first : nullptr;
      encode(kCpu, piece.format, input.from(piece.range.first), piece.range.count,
             piece.format.payload(message_bytes + piece.offset, piece.range.count), next);
    }
    message_bytes += message.bytes;
  }
}

void TwoPhase::merge_powers() {
  const std::uint64_t message_bytes = up_[static_cast<std::size_t>(wire_.rank())].bytes;
  for (std::size_t t = 0; t < tensors_.size(); ++t) {
    const auto* header = got_up_.const_data_ptr<std::uint8_t>() + t * sizeof(float);
    double sum = 0;
    for (int sender = 0; sender < wire_.world_size(); ++sender, header += message_bytes) {
      float power;
      std::memcpy(&power, header, sizeof power);
      sum += static_cast<double>(power);
    }
    const auto mean = static_cast<float>(sum / wire_.world_size());
    power_[t] = sum == 0 ? 0.0F : mean == 0 ? std::numeric_limits<float>::denorm_min() : mean;
  }
}

void TwoPhase::reduce_own(float result_weight) {
  const auto rank = static_cast<std::size_t>(wire_.rank());
  const Message& received = up_[rank];
  const Message& result = down_[rank];
  std::uint8_t* out = reserve(sent_down_, result.bytes * up_.size());
  for (std::size_t p = 0; p < received.pieces.size(); ++p) {
    reduce_piece(received.pieces[p], result.pieces[p].format, out + result.pieces[p].offset, result_weight);
  }
  for (std::size_t receiver = 1; receiver < up_.size(); ++receiver) {
    std::memcpy(out + receiver * result.bytes, out, result.bytes);
  }
}

/// Adds up one own range and encodes the sum, part by part: a sum is read again while it is still in the cache.
void TwoPhase::reduce_piece(const Piece& piece, Format down, std::uint8_t* out, float result_weight) {
  const std::uint64_t message_bytes = up_[static_cast<std::size_t>(wire_.rank())].bytes;
  const std::uint64_t count = piece.range.count;
  Residual* residual = tensors_[piece.tensor].owner;
  rules::Residual* next = residual ? residual->next(count) : nullptr;
  const std::uint64_t part = std::max(piece.format.block, down.block) * parts_of(piece.format, down);
  auto* sum = reinterpret_cast<float*>(reserve(sum_, std::min(part, count) * sizeof(float)));
  for (std::uint64_t first = 0; first < count; first += part) {
    const std::uint64_t size = std::min(part, count - first);
    auto* payload = got_up_.mutable_data_ptr<std::uint8_t>() + piece.offset;
    for (int sender = 0; sender < wire_.world_size(); ++sender, payload += message_bytes) {
      decode(kCpu, piece.format, piece.format.from(piece.format.payload(payload, count), first), size,
             sender == 0 ? Store::assign : Store::add, sum);
    }
    const EncodeInput input{sum, residual && residual->now() ? residual->now() + first : nullptr, nullptr, nullptr,
                            result_weight};
    encode(kCpu, down, input, size, down.from(down.payload(out, count), first), next ? next + first : nullptr);
  }
}

bool TwoPhase::decode_all() {
  bool finite = true;
  auto* message_bytes = got_down_.mutable_data_ptr<std::uint8_t>();
  for (const Message& message : down_) {
    for (const Piece& piece : message.pieces) {
      if (power_[piece.tensor] == 0) continue;
      auto* payload = message_bytes + piece.offset;
      finite &= payload_is_finite(piece.format, payload, piece.range.count);
      decode(kCpu, piece.format, piece.format.payload(payload, piece.range.count), piece.range.count, Store::stream,
             tensors_[piece.tensor].values + piece.range.first);
    }
    message_bytes += message.bytes;
  }
  for (std::size_t t = 0; t < tensors_.size(); ++t) {
    if (power_[t] == 0) combine(tensors_[t]);
  }
  return finite;
}

}  // namespace octavo
