// SPDX-License-Identifier: Apache-2.0
#include "octavo/comm/wire.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <algorithm>
#include <numeric>
#include <utility>

#include "octavo/comm/forked_children.h"
#include "octavo/comm/gloo_exchange.h"
#include "octavo/comm/shared/shared_backend.h"
#include "octavo/comm/time_left.h"
#include "octavo/device/scratch.h"
#include "octavo/kernels/error.h"

namespace octavo {

namespace {

/// c10d reports an expired deadline and a dead peer by the same exception types; the text tells them apart.
bool expired(const std::string& what) {
  return what.find("imed out") != std::string::npos || what.find("imeout") != std::string::npos;
}

/// Returns the first line of what a back end says, without the place in Gloo's sources and Gloo's advice in it.
std::string reason(std::string what) {
  what.erase(std::min(what.find('\n'), what.size()));
  const std::size_t place = what.find("gloo/"), begin = what.rfind('[', place), end = what.find("] ", place);
  if (place != std::string::npos && begin != std::string::npos && end != std::string::npos) {
    what.erase(begin, end + 2 - begin);
  }
  return what.substr(0, what.find(". This is typically"));
}

/// Runs `talk`, which calls the back end, and throws a failure of it as one sentence.
template <class Talk>
auto with_wire_errors(int rank, std::chrono::milliseconds timeout, Talk talk) {
  try {
    return talk();
  } catch (const Error&) {
    throw;  // thrown by Octavo's own back ends
  } catch (const std::exception& error) {
    const std::string what = reason(message_without_backtrace(error));
    const bool late = expired(what);
    fail(late ? ErrorCode::timeout : ErrorCode::communication, "comm.wire", "rank ", rank,
         late ? ": a peer did not answer within " : ": an exchange with a peer failed before the end of ",
         timeout.count(), " ms (", what, ")", kRebuild);
  }
}

/// Returns the parcels one after another, as an all-to-all takes them; a copy where they do not lie so.
at::Tensor in_order(const at::Tensor& buffer, std::span<const Parcel> parcels) {
  std::vector<at::Tensor> parts;
  Parcel all;
  bool is_in_order = true;
  for (const Parcel& parcel : parcels) {
    if (parcel.bytes == 0) continue;
    if (all.bytes == 0) all.offset = parcel.offset;
    is_in_order = is_in_order && parcel.offset == all.offset + all.bytes;
    all.bytes += parcel.bytes;
    parts.push_back(parcel_view(buffer, parcel));
  }
  return is_in_order ? parcel_view(buffer, all) : at::cat(parts);
}

std::vector<std::int64_t> splits(std::span<const Parcel> parcels) {
  std::vector<std::int64_t> bytes;
  for (const Parcel& parcel : parcels) bytes.push_back(static_cast<std::int64_t>(parcel.bytes));
  return bytes;
}

}  // namespace

std::uint64_t ring_bytes(std::uint64_t payload_bytes, int ranks) {
  if (ranks < 1) fail(ErrorCode::invalid_argument, "comm.ring_bytes", "expected at least 1 rank, got ", ranks);
  const auto world = static_cast<std::uint64_t>(ranks);
  return 2 * payload_bytes * (world - 1) / world;
}

std::string message_without_backtrace(const std::exception& error) {
  const auto* const of_torch = dynamic_cast<const c10::Error*>(&error);
  return of_torch ? of_torch->what_without_backtrace() : error.what();
}

at::Tensor parcel_view(const at::Tensor& buffer, const Parcel& parcel) {
  return buffer.narrow(0, static_cast<std::int64_t>(parcel.offset), static_cast<std::int64_t>(parcel.bytes));
}

std::vector<Parcel> one_after_another(std::span<const std::uint64_t> bytes) {
  std::vector<Parcel> parcels;
  std::uint64_t offset = 0;
  for (const std::uint64_t one : bytes) parcels.push_back({std::exchange(offset, offset + one), one});
  return parcels;
}

Transfer::Transfer(c10::intrusive_ptr<c10d::Work> work, int rank, std::chrono::milliseconds timeout,
                   std::vector<std::uint8_t*> from)
    : work_(std::move(work)), from_(std::move(from)), rank_(rank), timeout_(timeout) {}
Transfer::Transfer(std::unique_ptr<Posting> posting, int rank, std::chrono::milliseconds timeout)
    : posting_(std::move(posting)), rank_(rank), timeout_(timeout) {}
Transfer::~Transfer() = default;
Transfer::Transfer(Transfer&&) noexcept = default;
Transfer& Transfer::operator=(Transfer&&) noexcept = default;

void Transfer::wait() {
  if (posting_) return posting_->await(timeout_);
  with_wire_errors(rank_, timeout_, [&] { return work_->wait(timeout_); });
}

std::uint8_t* Transfer::from(int sender) const {
  return posting_ ? posting_->from(sender) : from_[static_cast<std::size_t>(sender)];
}

Wire::Wire(c10::intrusive_ptr<c10d::Backend> backend, std::chrono::milliseconds timeout, std::uint64_t longest_message,
           std::vector<int> names)
    : backend_(required(std::move(backend), "comm.wire", "expected a back end of c10d, got none")),
      shared_(dynamic_cast<SharedBackend*>(backend_.get())),
      is_gloo_(backend_->getBackendName() == "gloo"),
      timeout_(at_most_a_century(timeout)),
      longest_message_(longest_message),
      rank_(backend_->getRank()),
      world_size_(backend_->getSize()),
      names_(std::move(names)) {
  if (timeout_.count() <= 0) {
    fail(ErrorCode::invalid_argument, "comm.wire", "expected a timeout above 0 ms, got ", timeout_.count(), " ms");
  }
  if (!names_.empty() && names_.size() != static_cast<std::size_t>(world_size_)) {
    fail(ErrorCode::invalid_argument, "comm.wire", "expected names of ", world_size_, " ranks, got ", names_.size());
  }
  keep_in_children(backend_.get());
}

Wire::~Wire() { release_in_children(backend_.get()); }

void Wire::count(std::span<const Parcel> parcels) {
  for (const int peer : others()) sent_bytes_ += parcels[static_cast<std::size_t>(peer)].bytes;
}

Transfer Wire::exchange(const at::Tensor& send, std::span<const Parcel> parcels, at::Tensor& receive,
                        std::span<const std::uint64_t> receive_bytes) {
  count(parcels);
  const std::vector<Parcel> received = one_after_another(receive_bytes);
  std::vector<std::uint8_t*> from;
  for (const Parcel& parcel : received) from.push_back(receive.mutable_data_ptr<std::uint8_t>() + parcel.offset);
  return with_wire_errors(name_of(rank_), timeout_, [&] {
    if (is_gloo_) {
      std::erase_if(under_way_, [](const auto& exchange) { return exchange->is_over(); });
      auto& exchange = under_way_.emplace_back(
          c10::make_intrusive<GlooExchange>(*backend_, send, parcels, receive, received, timeout_, *this));
      return Transfer(exchange, name_of(rank_), timeout_, from);
    }
    at::Tensor sent = in_order(send, parcels);
    auto send_splits = splits(parcels), receive_splits = splits(received);
    c10d::AllToAllOptions options;
    options.timeout = timeout_;
    return Transfer(backend_->alltoall_base(receive, sent, receive_splits, send_splits, options), name_of(rank_),
                    timeout_, from);
  });
}

bool Wire::shares_memory(c10::Device device) const { return shared_ && device.is_cpu(); }

std::uint8_t* Wire::reserve_to_send(at::Tensor& buffer, std::uint64_t bytes, c10::Device device) {
  if (!shares_memory(device)) return reserve_on_host(buffer, bytes, device);
  buffer = at::Tensor();
  buffer = shared_->room(bytes);
  return buffer.mutable_data_ptr<std::uint8_t>();
}

Transfer Wire::exchange_in_place(const at::Tensor& send, std::span<const Parcel> parcels,
                                 std::span<const std::uint64_t> receive_bytes) {
  count(parcels);
  return {shared_->post(send, parcels, {receive_bytes.begin(), receive_bytes.end()}), name_of(rank_), timeout_};
}

Transfer Wire::start_all_reduce(at::Tensor& tensor) {
  sent_bytes_ += ring_bytes(tensor.nbytes(), world_size_);
  std::vector<at::Tensor> tensors = {tensor};
  c10d::AllreduceOptions options;
  options.timeout = timeout_;
  return with_wire_errors(name_of(rank_), timeout_,
                          [&] { return Transfer(backend_->allreduce(tensors, options), name_of(rank_), timeout_); });
}

Transfer Wire::start_reduce_scatter(at::Tensor& output, at::Tensor& input) {
  sent_bytes_ += ring_bytes(input.nbytes(), world_size_) / 2;
  c10d::ReduceScatterOptions options;
  options.timeout = timeout_;
  return with_wire_errors(name_of(rank_), timeout_, [&] {
    return Transfer(backend_->_reduce_scatter_base(output, input, options), name_of(rank_), timeout_);
  });
}

}  // namespace octavo
