// SPDX-License-Identifier: Apache-2.0
#include "octavo/comm/wire.h"

#include <torch/csrc/distributed/c10d/Backend.hpp>

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

Transfer::Transfer(c10::intrusive_ptr<c10d::Work> work, int rank, std::chrono::milliseconds deadline)
    : work_(std::move(work)), rank_(rank), deadline_(deadline) {}
Transfer::~Transfer() = default;
Transfer::Transfer(Transfer&&) noexcept = default;
Transfer& Transfer::operator=(Transfer&&) noexcept = default;

void Transfer::wait() {
  guarded(rank_, deadline_, [&] { return work_->wait(deadline_); });
}

Wire::Wire(c10::intrusive_ptr<c10d::Backend> backend, std::chrono::milliseconds deadline)
    : backend_(std::move(backend)), deadline_(deadline), rank_(backend_->getRank()), world_size_(backend_->getSize()) {}

Wire::~Wire() = default;

Transfer Wire::exchange(at::Tensor& send, std::span<const std::uint64_t> send_bytes, at::Tensor& receive,
                        std::span<const std::uint64_t> receive_bytes) {
  for (int peer = 0; peer < world_size_; ++peer) {
    if (peer != rank_) sent_bytes_ += send_bytes[static_cast<std::size_t>(peer)];
  }
  auto send_splits = splits(send_bytes);
  auto receive_splits = splits(receive_bytes);
  c10d::AllToAllOptions options;
  options.timeout = deadline_;
  return guarded(rank_, deadline_, [&] {
    return Transfer(backend_->alltoall_base(receive, send, receive_splits, send_splits, options), rank_, deadline_);
  });
}

Transfer Wire::start_all_reduce(at::Tensor& tensor) {
  if (tensor.is_sparse()) {  // every rank sends all of it to every other
    const std::uint64_t bytes = tensor._indices().nbytes() + tensor._values().nbytes();
    sent_bytes_ += bytes * static_cast<std::uint64_t>(world_size_ - 1);
  } else {
    sent_bytes_ += ring_bytes(tensor.nbytes());
  }
  std::vector<at::Tensor> tensors = {tensor};
  c10d::AllreduceOptions options;
  options.timeout = deadline_;
  return guarded(rank_, deadline_, [&] { return Transfer(backend_->allreduce(tensors, options), rank_, deadline_); });
}

Transfer Wire::start_reduce_scatter(at::Tensor& output, at::Tensor& input) {
  sent_bytes_ += ring_bytes(input.nbytes()) / 2;
  c10d::ReduceScatterOptions options;
  options.timeout = deadline_;
  return guarded(rank_, deadline_,
                 [&] { return Transfer(backend_->_reduce_scatter_base(output, input, options), rank_, deadline_); });
}

std::uint64_t Wire::ring_bytes(std::uint64_t payload_bytes) const {
  const auto world = static_cast<std::uint64_t>(world_size_);
  return 2 * payload_bytes * (world - 1) / world;
}

}  // namespace octavo
