// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include <chrono>
#include <exception>
#include <span>
#include <sys/types.h>
#include <vector>

#include "octavo/comm/time_left.h"
#include "octavo/comm/wire.h"

namespace octavo {

/// An all-to-all of bytes over Gloo, by messages from rank to rank.
///
/// Gloo's own all-to-all begins to send to a peer that is ready before it says that it is ready itself, on the same
/// connection. The peer reads this only after the whole message, so that two large messages are sent one after the
/// other: two hosts that exchange 4 MB at 1 Gbit/s reach 0.55 Gbit/s each way (torch 2.13). Here a rank is ready to
/// receive from all others before it sends to any: 0.9 Gbit/s.
///
/// Not thread-safe. As with collectives, all ranks begin the exchanges of one back end in the same order.
class GlooExchange final : public c10d::Work {
 public:
  /// Begins the exchange: parcels[r] of `send` goes to rank r, and what rank r sends goes to received[r] of `receive`.
  /// Both are uint8. `wire` says how errors name ranks. A peer that is lost already is reported by wait(), and the
  /// others get their messages.
  GlooExchange(c10d::Backend& gloo, const at::Tensor& send, std::span<const Parcel> parcels, const at::Tensor& receive,
               std::span<const Parcel> received, std::chrono::milliseconds timeout, const Wire& wire);
  /// Waits for the messages that nobody has waited for, at most until `timeout` after the exchange was begun: a
  /// connection on which a message stopped halfway cannot be used again.
  ~GlooExchange() override;

  /// Throws what Gloo throws where a peer is lost or late. Messages of other peers are then still under way.
  bool wait(std::chrono::milliseconds timeout) override;

  /// Whether no message is under way, apart from those of lost ranks.
  bool is_over() const { return peers_.empty(); }

 private:
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;

  /// One rank's messages, and what was thrown when they were begun.
  struct Peer {
    int rank, name;  // its number in the back end, and the one by which errors name it
    WorkPtr received, end_received, sent, end_sent;
    std::exception_ptr failure;
  };

  const pid_t process_;
  std::vector<Peer> peers_;  // those with whom messages are under way
  TimeLeft left_;            // since the exchange was begun
};

}  // namespace octavo
