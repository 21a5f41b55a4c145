// SPDX-License-Identifier: Apache-2.0
#include "octavo/comm/shared/shared_backend.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include <algorithm>
#include <functional>
#include <mutex>
#include <numeric>
#include <utility>

#include "octavo/comm/shared/copy_bytes.h"
#include "octavo/comm/wire.h"
#include "octavo/kernels/error.h"
#include "octavo/kernels/round_up.h"

namespace octavo {

using std::chrono::milliseconds;

namespace {

constexpr const char* kSharedBackendWhere = "comm.shared_backend";
constexpr std::uint64_t kMostBehind = HostRanks::kSlots / 2;  // how many postings later a work is completed

/// Work that is done by the caller that waits for it. Thread-safe.
class SharedWork final : public c10d::Work {
 public:
  using Finish = std::function<void(const Posting&)>;

  SharedWork(std::unique_ptr<Posting> posting, milliseconds timeout, Finish finish)
      : posting_(std::move(posting)), timeout_(timeout), finish_(std::move(finish)) {}

  bool isCompleted() override {
    const std::lock_guard lock(mutex_);
    return !posting_;
  }
  bool wait(milliseconds timeout) override {
    const std::lock_guard lock(mutex_);
    if (!posting_) return true;
    posting_->await(timeout == kNoTimeout ? timeout_ : timeout);
    finish_(*posting_);
    finish_ = nullptr;  // its tensors are the caller's
    posting_.reset();
    return true;
  }

  /// Called when the last caller releases it; the back end's weak pointer keeps the rest for a while.
  void release_resources() override {
    finish_ = nullptr;
    posting_.reset();
  }

 private:
  std::mutex mutex_;
  std::unique_ptr<Posting> posting_;
  milliseconds timeout_;
  Finish finish_;
};

std::uint8_t* data_of(const at::Tensor& tensor) { return static_cast<std::uint8_t*>(tensor.mutable_data_ptr()); }

bool is_plain(const at::Tensor& tensor) {
  return tensor.layout() == at::kStrided && tensor.is_cpu() && tensor.is_contiguous();
}

bool can_add(const at::Tensor& tensor, const c10d::ReduceOp& op) {
  return is_plain(tensor) && op == c10d::ReduceOp::SUM && tensor.scalar_type() != at::kBool;
}

/// Adds up summands[r], the address of rank r's elements, in rank order. They have the dtype of `out`, whose own memory
/// may be one of them. It works on a part at a time, which stays in a core's cache between the steps of its sum.
void add_in_rank_order(const at::Tensor& out, const std::vector<std::uint8_t*>& summands) {
  constexpr std::int64_t kPart = 1 << 15;
  const auto width = static_cast<std::int64_t>(out.itemsize());
  at::parallel_for(0, divide_up(out.numel(), kPart), 1, [&](std::int64_t from, std::int64_t to) {
    for (std::int64_t first = from * kPart; first < std::min(to * kPart, out.numel()); first += kPart) {
      const std::int64_t count = std::min(kPart, out.numel() - first);
      const auto part = [&](std::size_t rank) {
        return at::from_blob(summands[rank] + first * width, {count}, out.options());
      };
      at::Tensor sum = at::from_blob(data_of(out) + first * width, {count}, out.options());
      if (summands.size() == 2) {
        at::add_out(sum, part(0), part(1));
        continue;
      }
      at::Tensor partial = summands.size() == 1 ? part(0) : at::add(part(0), part(1));
      for (std::size_t rank = 2; rank < summands.size(); ++rank) partial.add_(part(rank));
      sum.copy_(partial);
    }
  });
}

/// Returns the bytes for each rank of a tensor whose first dimension is cut by `sizes`, or evenly where there are none.
std::vector<std::uint64_t> bytes_by_rank(const at::Tensor& tensor, const std::vector<std::int64_t>& sizes, int world) {
  std::vector<std::uint64_t> bytes(static_cast<std::size_t>(world), tensor.nbytes() / static_cast<unsigned>(world));
  const std::uint64_t row = tensor.numel() == 0 ? 0 : tensor.nbytes() / static_cast<std::uint64_t>(tensor.size(0));
  for (std::size_t rank = 0; rank < sizes.size(); ++rank) bytes[rank] = static_cast<std::uint64_t>(sizes[rank]) * row;
  return bytes;
}

/// Throws Error invalid_argument unless the first dimension of `tensor`, which `of` names, can be cut by `sizes`: they
/// are sizes of `world` parts and add up to it, or there are none and it has as many values for each rank.
void require_cut(const char* of, const at::Tensor& tensor, const std::vector<std::int64_t>& sizes, int world) {
  const bool is_even = sizes.empty() && tensor.numel() % world == 0;
  const bool are_parts = tensor.dim() > 0 && sizes.size() == static_cast<std::size_t>(world) &&
                         std::ranges::all_of(sizes, [](std::int64_t size) { return size >= 0; }) &&
                         std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0}) == tensor.size(0);
  if (is_even || are_parts) return;
  fail(ErrorCode::invalid_argument, kSharedBackendWhere, of, " of the shape ", tensor.sizes(), " cannot be cut into ",
       world, " parts of the sizes ", at::IntArrayRef(sizes), ": give a size for each rank, which add up to its first ",
       "dimension, or none");
}

void require_same_dtype(const at::Tensor& input, const at::Tensor& output) {
  if (input.scalar_type() == output.scalar_type()) return;
  fail(ErrorCode::wrong_type, kSharedBackendWhere, "the input is of ", toString(input.scalar_type()),
       " and the output of ", toString(output.scalar_type()), ": expected the same dtype");
}

/// Throws Error unless `whole` has the values of `world` tensors like `part`.
void require_whole(const at::Tensor& whole, const at::Tensor& part, int world) {
  require_same_dtype(part, whole);
  if (whole.numel() == part.numel() * world) return;
  fail(ErrorCode::invalid_argument, kSharedBackendWhere, "a tensor of ", part.numel(), " values for each of ", world,
       " ranks, and one of ", whole.numel(), " for all of them: expected ", part.numel() * world);
}

}  // namespace

SharedBackend::SharedBackend(BackendPtr fallback, std::shared_ptr<HostRanks> ranks)
    : Backend(fallback->getRank(), fallback->getSize()), fallback_(std::move(fallback)), ranks_(std::move(ranks)) {}

/// Options that name no timeout have a number below 0.
milliseconds SharedBackend::timeout_or_default(milliseconds timeout) const {
  return timeout > milliseconds(0) ? timeout : ranks_->timeout();
}

/// Publishes what the other ranks get, without what this rank has for itself.
std::unique_ptr<Posting> SharedBackend::post(const at::Tensor& sent, std::span<const Parcel> parcels,
                                             std::vector<std::uint64_t> expected) {
  if (ranks_->contains(sent)) return post_room(sent, parcels, std::move(expected));
  std::vector<Parcel> copied(parcels.begin(), parcels.end());
  std::uint64_t bytes = 0;
  for (const int peer : ranks_->others()) {
    Parcel& parcel = copied[static_cast<std::size_t>(peer)];
    parcel.offset = std::exchange(bytes, bytes + parcel.bytes);
  }
  const at::Tensor room = ranks_->room(bytes);
  for (const int peer : ranks_->others()) {
    const auto index = static_cast<std::size_t>(peer);
    copy_in(data_of(room) + copied[index].offset, data_of(sent) + parcels[index].offset, copied[index].bytes);
  }
  return post_room(room, copied, std::move(expected));
}

std::unique_ptr<Posting> SharedBackend::post_room(const at::Tensor& room, std::span<const Parcel> parcels,
                                                  std::vector<std::uint64_t> expected) {
  complete_old_works();
  auto posting = ranks_->post(room, parcels, std::move(expected));
  ++posted_;
  return posting;
}

void SharedBackend::complete_old_works() {
  while (!begun_.empty() && posted_ - begun_.front().number >= kMostBehind) {
    const WorkPtr work = begun_.front().work.lock();
    begun_.pop_front();
    if (work) work->wait(kNoTimeout);
  }
}

SharedBackend::WorkPtr SharedBackend::begun(std::unique_ptr<Posting> posting, milliseconds timeout,
                                            std::function<void(const Posting&)> finish) {
  WorkPtr work = c10::make_intrusive<SharedWork>(std::move(posting), timeout_or_default(timeout), std::move(finish));
  begun_.push_back({posted_, c10::weak_intrusive_ptr<c10d::Work>(work)});
  return work;
}

/// Lets all ranks read the same memory.
std::unique_ptr<Posting> SharedBackend::post_to_all(const at::Tensor& room) {
  const auto world = static_cast<std::size_t>(getSize());
  return post_room(room, std::vector<Parcel>(world, {0, room.nbytes()}),
                   std::vector<std::uint64_t>(world, room.nbytes()));
}

SharedBackend::WorkPtr SharedBackend::alltoall_base(at::Tensor& output, at::Tensor& input,
                                                    std::vector<std::int64_t>& output_sizes,
                                                    std::vector<std::int64_t>& input_sizes,
                                                    const c10d::AllToAllOptions& options) {
  if (!is_plain(output) || !is_plain(input)) {
    return fallback_->alltoall_base(output, input, output_sizes, input_sizes, options);
  }
  require_same_dtype(input, output);
  require_cut("the input", input, input_sizes, getSize());
  require_cut("the output", output, output_sizes, getSize());
  const auto parcels = one_after_another(bytes_by_rank(input, input_sizes, getSize()));
  const auto expected = bytes_by_rank(output, output_sizes, getSize());
  const auto own = static_cast<std::size_t>(getRank());
  if (parcels[own].bytes != expected[own]) {
    fail(ErrorCode::invalid_argument, kSharedBackendWhere, "rank ", own, " has ", parcels[own].bytes,
         " bytes for itself in the input, and expects ", expected[own], " in the output");
  }
  const auto finish = [output, input, parcels, expected](const Posting& posting) {
    std::uint8_t* to = data_of(output);
    for (int peer = 0; peer < posting.world_size(); ++peer) {
      const auto index = static_cast<std::size_t>(peer);
      const bool is_own = peer == posting.rank();
      copy_out(to, is_own ? data_of(input) + parcels[index].offset : posting.from(peer), expected[index]);
      to += expected[index];
    }
  };
  return begun(post(input, parcels, expected), options.timeout, finish);
}

SharedBackend::WorkPtr SharedBackend::_allgather_base(at::Tensor& output, at::Tensor& input,
                                                      const c10d::AllgatherOptions& options) {
  if (!is_plain(output) || !is_plain(input)) return fallback_->_allgather_base(output, input, options);
  require_whole(output, input, getSize());
  const std::uint64_t bytes = input.nbytes();
  std::uint8_t* const own = data_of(output) + static_cast<std::uint64_t>(getRank()) * bytes;
  const bool is_in_place = own == data_of(input), is_shared = ranks_->contains(input);
  at::Tensor room = is_shared ? input : ranks_->room(bytes);
  if (!is_shared && is_in_place) copy_in(data_of(room), own, bytes);
  if (!is_shared && !is_in_place) copy_in_and_out(data_of(room), own, data_of(input), bytes);
  const bool lacks_own = is_shared && !is_in_place;
  const auto finish = [output, input, bytes, lacks_own](const Posting& posting) {
    for (int peer = 0; peer < posting.world_size(); ++peer) {
      const bool is_own = peer == posting.rank();
      if (is_own && !lacks_own) continue;
      copy_out(data_of(output) + static_cast<std::uint64_t>(peer) * bytes, is_own ? data_of(input) : posting.from(peer),
               bytes);
    }
  };
  return begun(post_to_all(room), options.timeout, finish);
}

SharedBackend::WorkPtr SharedBackend::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                                           const c10d::ReduceScatterOptions& options) {
  if (!can_add(output, options.reduceOp) || !is_plain(input)) {
    return fallback_->_reduce_scatter_base(output, input, options);
  }
  require_whole(input, output, getSize());
  const auto world = static_cast<std::size_t>(getSize());
  const std::vector<std::uint64_t> bytes(world, output.nbytes());
  const auto parcels = one_after_another(bytes);
  const auto finish = [output, input, parcels](const Posting& posting) {
    std::vector<std::uint8_t*> summands;
    for (int peer = 0; peer < posting.world_size(); ++peer) {
      const bool is_own = peer == posting.rank();
      summands.push_back(is_own ? data_of(input) + parcels[static_cast<std::size_t>(peer)].offset : posting.from(peer));
    }
    add_in_rank_order(output, summands);
  };
  return begun(post(input, parcels, bytes), options.timeout, finish);
}

SharedBackend::WorkPtr SharedBackend::allreduce(std::vector<at::Tensor>& tensors,
                                                const c10d::AllreduceOptions& options) {
  if (tensors.size() != 1 || !can_add(tensors.front(), options.reduceOp)) return fallback_->allreduce(tensors, options);
  const at::Tensor& own = tensors.front();
  const auto finish = [own](const Posting& posting) {
    std::vector<std::uint8_t*> summands;
    for (int peer = 0; peer < posting.world_size(); ++peer) {
      summands.push_back(peer == posting.rank() ? data_of(own) : posting.from(peer));
    }
    add_in_rank_order(own, summands);
  };
  const at::Tensor room = ranks_->room(own.nbytes());  // never `own`, which takes the sum while others still read
  copy_in(data_of(room), data_of(own), own.nbytes());
  return begun(post_to_all(room), options.timeout, finish);
}

SharedBackend::WorkPtr SharedBackend::barrier(const c10d::BarrierOptions& options) {
  return begun(post_to_all(ranks_->room(0)), options.timeout, [](const Posting&) {});
}

Reached reach_by_shared_memory(c10::intrusive_ptr<c10d::Backend> backend, std::optional<bool> wanted,
                               milliseconds timeout) {
  if (!backend) fail(ErrorCode::invalid_argument, kSharedBackendWhere, "expected a back end of c10d, got none");
  if (dynamic_cast<SharedBackend*>(backend.get())) return {std::move(backend), ""};
  if (backend->getSize() == 1) return {std::move(backend), "there is only one rank"};
  if (!wanted.value_or(true)) return {std::move(backend), "it was not wanted"};
  Wire wire(backend, timeout);
  auto [ranks, why_not] = HostRanks::connect(wire, timeout);
  if (!ranks) return {std::move(backend), std::move(why_not)};
  return {c10::make_intrusive<SharedBackend>(std::move(backend), std::move(ranks)), ""};
}

}  // namespace octavo
