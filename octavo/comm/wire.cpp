// SPDX-License-Identifier: Apache-2.0
#include "octavo/comm/wire.h"

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <utility>

#include "octavo/comm/shared/shared_backend.h"
#include "octavo/device/scratch.h"
#include "octavo/kernels/error.h"

namespace octavo {

namespace {

/// c10d reports an expired deadline and a dead peer by the same exception types; the text tells them apart.
bool expired(const std::string& what) {
  return what.find("imed out") != std::string::npos || what.find("imeout") != std::string::npos;
}

std::string first_line(const std::string& what) { return what.substr(0, what.find('\n')); }

/// Runs `talk`, which calls the backend; throws a failure of it as one sentence.
template <class Talk>
auto guarded(int rank, std::chrono::milliseconds deadline, Talk talk) {
  try {
    return talk();
  } catch (const Error&) {
    throw;  // of Octavo's own back ends
  } catch (const std::exception& error) {
    const auto* torch_error = dynamic_cast<const c10::Error*>(&error);
    const std::string what = first_line(torch_error ? torch_error->what_without_backtrace() : error.what());
    const bool late = expired(what);
    fail(late ? ErrorCode::timeout : ErrorCode::communication, "comm.wire", "rank ", rank,
         late ? ": a peer did not answer within " : ": the connection to a peer failed before the deadline of ",
         deadline.count(), " ms (", what, "); the process group and its handles must be rebuilt");
  }
}

std::vector<std::int64_t> splits(std::span<const std::uint64_t> bytes) { return {bytes.begin(), bytes.end()}; }

}  // namespace

std::uint64_t ring_bytes(std::uint64_t payload_bytes, int ranks) {
  const auto world = static_cast<std::uint64_t>(ranks);
  return 2 * payload_bytes * (world - 1) / world;
}

Transfer::Transfer(c10::intrusive_ptr<c10d::Work> work, int rank, std::chrono::milliseconds deadline,
                   std::vector<std::uint8_t*> from)
    : work_(std::move(work)), from_(std::move(from)), rank_(rank), deadline_(deadline) {}
Transfer::Transfer(std::unique_ptr<Posting> posting, int rank, std::chrono::milliseconds deadline)
    : posting_(std::move(posting)), rank_(rank), deadline_(deadline) {}
Transfer::~Transfer() = default;
Transfer::Transfer(Transfer&&) noexcept = default;
Transfer& Transfer::operator=(Transfer&&) noexcept = default;

void Transfer::wait() {
  if (posting_) return posting_->await(deadline_);
  guarded(rank_, deadline_, [&] { return work_->wait(deadline_); });
}

std::uint8_t* Transfer::from(int sender) const {
  return posting_ ? posting_->from(sender) : from_[static_cast<std::size_t>(sender)];
}

Wire::Wire(c10::intrusive_ptr<c10d::Backend> backend, std::chrono::milliseconds deadline, std::uint64_t longest_message)
    : backend_(std::move(backend)),
      shared_(dynamic_cast<SharedBackend*>(backend_.get())),
      deadline_(deadline),
      longest_message_(longest_message),
      rank_(backend_->getRank()),
      world_size_(backend_->getSize()) {}

Wire::~Wire() = default;

Transfer Wire::exchange(at::Tensor& send, std::span<const std::uint64_t> send_bytes, at::Tensor& receive,
                        std::span<const std::uint64_t> receive_bytes) {
  for (int peer = 0; peer < world_size_; ++peer) {
    if (peer != rank_) sent_bytes_ += send_bytes[static_cast<std::size_t>(peer)];
  }
  auto send_splits = splits(send_bytes);
  auto receive_splits = splits(receive_bytes);
  std::vector<std::uint8_t*> from;
  auto* place = static_cast<std::uint8_t*>(receive.mutable_data_ptr());
  for (const std::uint64_t bytes : receive_bytes) from.push_back(std::exchange(place, place + bytes));
  c10d::AllToAllOptions options;
  options.timeout = deadline_;
  return guarded(rank_, deadline_, [&] {
    auto work = backend_->alltoall_base(receive, send, receive_splits, send_splits, options);
    return Transfer(std::move(work), rank_, deadline_, std::move(from));
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
  for (int peer = 0; peer < world_size_; ++peer) {
    if (peer != rank_) sent_bytes_ += parcels[static_cast<std::size_t>(peer)].bytes;
  }
  return {shared_->post(send, parcels, {receive_bytes.begin(), receive_bytes.end()}), rank_, deadline_};
}

Transfer Wire::start_all_reduce(at::Tensor& tensor) {
  sent_bytes_ += ring_bytes(tensor.nbytes(), world_size_);
  std::vector<at::Tensor> tensors = {tensor};
  c10d::AllreduceOptions options;
  options.timeout = deadline_;
  return guarded(rank_, deadline_, [&] { return Transfer(backend_->allreduce(tensors, options), rank_, deadline_); });
}

Transfer Wire::start_reduce_scatter(at::Tensor& output, at::Tensor& input) {
  sent_bytes_ += ring_bytes(input.nbytes(), world_size_) / 2;
  c10d::ReduceScatterOptions options;
  options.timeout = deadline_;
  return guarded(rank_, deadline_,
                 [&] { return Transfer(backend_->_reduce_scatter_base(output, input, options), rank_, deadline_); });
}

}  // namespace octavo
