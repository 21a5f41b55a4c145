// SPDX-License-Identifier: Apache-2.0
#include "octavo/comm/gloo_exchange.h"

#include <ATen/ops/empty.h>
#include <c10/util/StringUtil.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <stdexcept>
#include <unistd.h>
#include <utility>

#include "octavo/comm/time_left.h"

namespace octavo {

namespace {

using std::chrono::milliseconds;

/// One tag for all exchanges: messages of a pair of ranks are then matched in their order. Ranks that begin different
/// exchanges read each other's messages, which begin with a digest, and do not wait for what never comes.
constexpr int kTag = 1;

at::Tensor view_of_rank(const at::Tensor& buffer, std::span<const Parcel> parcels, int rank) {
  return parcel_view(buffer, parcels[static_cast<std::size_t>(rank)]);
}

}  // namespace

/// Each message is followed by an empty one, for which wait() waits first: Gloo reports a lost peer only to a rank that
/// waits for a message of which nothing has arrived.
GlooExchange::GlooExchange(c10d::Backend& gloo, const at::Tensor& send, std::span<const Parcel> parcels,
                           const at::Tensor& receive, std::span<const Parcel> received, milliseconds timeout,
                           const Wire& wire)
    : process_(getpid()), left_(timeout) {
  const at::Tensor word = at::empty({0}, send.options());
  const auto begin_call = [](Peer& peer, auto begin) {
    try {
      if (!peer.failure) begin();
    } catch (...) {
      peer.failure = std::current_exception();
    }
  };
  for (int distance = 1; distance < gloo.getSize(); ++distance) {
    Peer& peer = peers_.emplace_back();
    peer.rank = (gloo.getRank() + distance) % gloo.getSize();
    peer.name = wire.name_of(peer.rank);
    begin_call(peer, [&] {
      std::vector<at::Tensor> message = {view_of_rank(receive, received, peer.rank)}, end = {word};
      peer.received = gloo.recv(message, peer.rank, kTag);
      peer.end_received = gloo.recv(end, peer.rank, kTag);
    });
  }
  for (Peer& peer : peers_) {
    begin_call(peer, [&] {
      std::vector<at::Tensor> message = {view_of_rank(send, parcels, peer.rank)}, end = {word};
      peer.sent = gloo.send(message, peer.rank, kTag);
      peer.end_sent = gloo.send(end, peer.rank, kTag);
    });
  }
  view_of_rank(receive, received, gloo.getRank()).copy_(view_of_rank(send, parcels, gloo.getRank()));
}

GlooExchange::~GlooExchange() {
  if (getpid() != process_) {  // Gloo's threads, which would end the messages, are not in a child
    static_cast<void>(new auto(std::move(peers_)));
    return;
  }
  while (!is_over()) {
    try {
      wait(left_());
    } catch (const std::exception&) {  // the peer is lost, or late, and so is what was sent
    }
  }
}

bool GlooExchange::wait(milliseconds timeout) {
  const TimeLeft left(timeout);
  while (!is_over()) {
    const Peer peer = std::move(peers_.back());  // if it fails, Gloo has closed the connection: nothing is under way
    peers_.pop_back();
    try {
      if (peer.failure) std::rethrow_exception(peer.failure);
      for (const WorkPtr& work : {peer.end_received, peer.received, peer.sent, peer.end_sent}) {
        if (!work->wait(left())) throw std::runtime_error("the back end was told to give up");
      }
    } catch (const std::exception& error) {  // which tells at most the peer's address
      throw std::runtime_error(c10::str("with rank ", peer.name, ": ", message_without_backtrace(error)));
    }
  }
  finish();
  return true;
}

}  // namespace octavo
