// SPDX-License-Identifier: Apache-2.0
#include "octavo/comm/schedule/two_phase.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <numeric>
#include <utility>

#include "octavo/comm/schedule/gradient_power.h"
#include "octavo/device/dispatch.h"
#include "octavo/device/scratch.h"

namespace octavo {

namespace {

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

/// One float per tensor: the mean square of the sender's gradient.
std::uint64_t header_bytes(std::size_t tensors) { return sizeof(float) * tensors; }

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
  const SettledAtEnd buffers_are_free(device_);
  Stopwatch watch;
  tensors_ = std::move(tensors);
  coder_.begin();
  power_ = gradient_powers(tensors_, device_, chunk_powers_);
  if (stays_here()) return;
  up_ = cut_for(tensors_, &Contribution::up, wire_.world_size(), header_bytes(tensors_.size()));
  down_ = cut_for(tensors_, &Contribution::down, wire_.world_size(), 0);
  encode_all();
  wait_for_current_stream(device_);
  exchange(sent_up_, sizes(up_), got_up_, std::vector(up_.size(), own(up_).bytes));
  watch.lap(seconds_.encode);
}

void TwoPhase::send_down(float result_weight) {
  if (stays_here()) return;
  const SettledAtEnd buffers_are_free(device_);
  Stopwatch watch;
  transfer_->wait();
  watch.lap(seconds_.wait_up);
  merge_powers();
  reduce_own(result_weight);
  exchange(sent_down_, std::vector(down_.size(), own(down_).bytes), got_down_, sizes(down_));
  watch.lap(seconds_.reduce);
}

/// Nothing goes to this rank itself: `send` and `receive` hold the messages of the others, in rank order.
void TwoPhase::exchange(at::Tensor& send, std::vector<std::uint64_t> send_bytes, at::Tensor& receive,
                        std::vector<std::uint64_t> receive_bytes) {
  const auto self = static_cast<std::size_t>(wire_.rank());
  send_bytes[self] = receive_bytes[self] = 0;
  reserve_on_host(receive, total(receive_bytes), device_);
  at::Tensor out = prefix(send, total(send_bytes)), in = prefix(receive, total(receive_bytes));
  transfer_ = wire_.exchange(out, send_bytes, in, receive_bytes);
}

Outcome TwoPhase::finish() {
  const SettledAtEnd buffers_are_free(device_);
  if (stays_here()) return finish_here();
  Stopwatch watch;
  transfer_->wait();
  watch.lap(seconds_.wait_down);
  decode_all();
  wait_for_current_stream(device_);
  watch.lap(seconds_.decode);
  return {coder_.is_finite(), power_};
}

/// With one rank nothing crosses a wire and nothing is encoded, unless the plan votes: even one rank's vote is a sign.
bool TwoPhase::stays_here() const {
  return wire_.world_size() == 1 && std::none_of(tensors_.begin(), tensors_.end(), [](const Contribution& tensor) {
           return !traits(tensor.up.codec).keeps_magnitude;
         });
}

Outcome TwoPhase::finish_here() {
  for (const Contribution& tensor : tensors_) coder_.combine(tensor);
  wait_for_current_stream(device_);
  return {coder_.is_finite(), power_};
}

const Message& TwoPhase::own(const std::vector<Message>& messages) const {
  return messages[static_cast<std::size_t>(wire_.rank())];
}

std::uint8_t* TwoPhase::received_from(int sender) {
  const int place = sender - (sender > wire_.rank() ? 1 : 0);  // nothing came from this rank itself
  return got_up_.mutable_data_ptr<std::uint8_t>() + static_cast<std::uint64_t>(place) * own(up_).bytes;
}

void TwoPhase::encode_all() {
  std::uint8_t* message_bytes = reserve_on_host(sent_up_, total(sizes(up_)), device_);
  for (const Message& message : up_) {
    if (&message == &own(up_)) continue;
    std::memcpy(message_bytes, power_.data(), header_bytes(power_.size()));
    for (const Piece& piece : message.pieces) {
      coder_.encode_up(tensors_[piece.tensor], piece.range, message_bytes + piece.offset);
    }
    message_bytes += message.bytes;
  }
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
  std::uint8_t* out = reserve_on_host(sent_down_, result.bytes * receivers, device_);
  std::vector<std::uint8_t*> payloads;
  for (std::size_t p = 0; p < result.pieces.size(); ++p) {
    const Piece& piece = own(up_).pieces[p];
    payloads.clear();
    for (int rank = 0; rank < wire_.world_size(); ++rank) {
      if (rank != wire_.rank()) payloads.push_back(received_from(rank) + piece.offset);
    }
    coder_.reduce(tensors_[piece.tensor], piece.range, payloads, out + result.pieces[p].offset, result_weight);
  }
  wait_for_current_stream(device_);
  for (std::uint64_t receiver = 1; receiver < receivers && result.bytes > 0; ++receiver) {
    std::memcpy(out + receiver * result.bytes, out, result.bytes);
  }
}

void TwoPhase::decode_all() {
  auto* got = got_down_.mutable_data_ptr<std::uint8_t>();
  for (const Message& message : down_) {
    const bool is_own = &message == &own(down_);
    std::uint8_t* bytes = is_own ? sent_down_.mutable_data_ptr<std::uint8_t>() : got;
    for (const Piece& piece : message.pieces) {
      if (power_[piece.tensor] == 0) continue;
      coder_.decode_down(tensors_[piece.tensor], piece.range, bytes + piece.offset);
    }
    if (!is_own) got += message.bytes;
  }
  for (std::size_t t = 0; t < tensors_.size(); ++t) {
    if (power_[t] == 0) coder_.combine(tensors_[t]);
  }
}

}  // namespace octavo
