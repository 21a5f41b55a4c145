// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "octavo/comm/other_ranks.h"
#include "octavo/export.h"

namespace c10d {
class Backend;
class Work;
}  // namespace c10d

namespace octavo {

/// The end of the sentence of an error after which ranks no longer know what others send next.
inline constexpr const char* kRebuild = "; the process group and its handles must be rebuilt";

class GlooExchange;
class Posting;
class SharedBackend;

/// Returns the bytes that a rank sends in a ring all-reduce of `payload_bytes` bytes over `ranks` ranks.
OCTAVO_API std::uint64_t ring_bytes(std::uint64_t payload_bytes, int ranks);

/// The bytes of a buffer that one rank sends another.
struct Parcel {
  std::uint64_t offset = 0, bytes = 0;
};

/// Returns a view of the parcel's bytes. `buffer`: uint8, of one dimension.
OCTAVO_API at::Tensor parcel_view(const at::Tensor& buffer, const Parcel& parcel);
/// Returns the error's message, without the backtrace that torch adds.
OCTAVO_API std::string message_without_backtrace(const std::exception& error);

/// Returns parcels of so many bytes, indexed by receiver. Each parcel begins where the one before it ends.
OCTAVO_API std::vector<Parcel> one_after_another(std::span<const std::uint64_t> bytes);

/// A transfer that is under way. wait() blocks until it is done and throws what Wire throws. Wire says what becomes of
/// one that nobody waits for.
class OCTAVO_API Transfer {
 public:
  /// `rank`: how errors name this rank. `from`: for an exchange, the addresses at which the bytes of each rank will
  /// lie, indexed by rank.
  Transfer(c10::intrusive_ptr<c10d::Work> work, int rank, std::chrono::milliseconds timeout,
           std::vector<std::uint8_t*> from = {});
  Transfer(std::unique_ptr<Posting> posting, int rank, std::chrono::milliseconds timeout);
  ~Transfer();
  Transfer(Transfer&&) noexcept;
  Transfer& operator=(Transfer&&) noexcept;

  void wait();
  /// Returns the address of what `sender` has sent in an exchange that was waited for. It lies in the receive buffer or
  /// in the sender's own memory, and may be read while this object exists.
  std::uint8_t* from(int sender) const;

 private:
  c10::intrusive_ptr<c10d::Work> work_;
  std::unique_ptr<Posting> posting_;
  std::vector<std::uint8_t*> from_;
  int rank_;
  std::chrono::milliseconds timeout_;
};

/// A back end of c10d as Octavo uses it, from Python a Gloo connection of Octavo's own, or a SharedBackend: it sends
/// bytes from rank to rank with a timeout, and counts the bytes that were sent.
///
/// Where the back end is a SharedBackend, the bytes to be sent need not be copied: the sender writes them to memory of
/// reserve_to_send(), and the other ranks read them there.
///
/// Exchanges send bytes only (uint8), because Gloo rejects other small types and no transport may add packed bytes. All
/// ranks must make the same calls in the same order. Throws Error communication where a peer fails (the process group
/// must then be rebuilt). Throws Error timeout if a peer does not answer within `timeout`. Over Gloo this needs a
/// process that ignores SIGPIPE, as Python does; a peer's end may otherwise end it.
class OCTAVO_API Wire {
 public:
  /// `backend` must have a name (getBackendName), alltoall_base() of bytes or, where its name is gloo, send() and
  /// recv(), allreduce() by sum and, for `dense` sums of shards, _reduce_scatter_base() by sum. `longest_message`: the
  /// bytes of the longest message that a rank may ever send another one; 0: not known yet (expect_messages_of()).
  /// `names`: the numbers by which errors name the ranks, in rank order, where a user knows them by other numbers than
  /// those of the back end; empty: by those. Errors of memory that ranks share (SharedBackend) have the numbers of the
  /// back end.
  /// Throws Error invalid_argument without a back end, and for a timeout of 0 or below, which c10d does not wait for.
  Wire(c10::intrusive_ptr<c10d::Backend> backend, std::chrono::milliseconds timeout, std::uint64_t longest_message = 0,
       std::vector<int> names = {});
  ~Wire();
  Wire(const Wire&) = delete;
  Wire& operator=(const Wire&) = delete;

  int rank() const { return rank_; }
  int world_size() const { return world_size_; }
  /// Returns the number by which errors name a rank.
  int name_of(int rank) const { return names_.empty() ? rank : names_[static_cast<std::size_t>(rank)]; }
  /// Returns all ranks but this one (other_ranks).
  auto others() const { return other_ranks(rank_, world_size_); }

  /// Sends each rank r the parcel parcels[r] of `send` (several ranks may get the same parcel), and receives
  /// `receive_bytes[r]` bytes from it, in rank order. The buffers belong to the transfer until it was waited for. If
  /// nobody waits for a transfer, because this rank has failed meanwhile, it still reaches the others while this object
  /// exists.
  [[nodiscard]] Transfer exchange(const at::Tensor& send, std::span<const Parcel> parcels, at::Tensor& receive,
                                  std::span<const std::uint64_t> receive_bytes);

  /// Says that a message from one rank to another may have this many bytes. There is then always room for the longest
  /// message that was ever said.
  void expect_messages_of(std::uint64_t bytes) { longest_message_ = room_for(bytes); }
  /// Returns the size of the buffer for a message of `bytes` bytes. The buffer has room for the longest message, so
  /// that a rank that sends another message is found by the message's header: Gloo ends the process of a receiver that
  /// has too little room, but accepts a message that is shorter than its buffer. A SharedBackend compares the sizes
  /// itself, and takes only those that are equal.
  std::uint64_t room_for(std::uint64_t bytes) const { return shared_ ? bytes : std::max(bytes, longest_message_); }

  /// Whether exchange_in_place() may be called for memory that kernels of this device write and read.
  bool shares_memory(c10::Device device) const;
  /// Makes the buffer at least `bytes` bytes large for what is sent next, as reserve_on_host() does, and returns its
  /// address. Where memory is shared, bytes of the old buffer that are still under way stay as they are.
  std::uint8_t* reserve_to_send(at::Tensor& buffer, std::uint64_t bytes, c10::Device device);
  /// Does what exchange() does, but in place: `send` is memory of reserve_to_send(), which the others read, and
  /// Transfer::from() says where the bytes of each rank lie.
  [[nodiscard]] Transfer exchange_in_place(const at::Tensor& send, std::span<const Parcel> parcels,
                                           std::span<const std::uint64_t> receive_bytes);

  /// Starts the back end's own all-reduce by sum, in place. The tensor belongs to the transfer until it was waited for.
  [[nodiscard]] Transfer start_all_reduce(at::Tensor& tensor);
  /// Makes the same all-reduce and waits for it.
  void all_reduce(at::Tensor& tensor) { start_all_reduce(tensor).wait(); }

  /// Starts the back end's own reduce-scatter by sum: `output`, which has a W-th of the size of `input`, gets the sum
  /// of the rank-th part. Both belong to the transfer until it was waited for.
  [[nodiscard]] Transfer start_reduce_scatter(at::Tensor& output, at::Tensor& input);

  /// Returns the bytes that this rank has sent to others. An all-reduce counts as the 2(W-1)/W of its size that a ring
  /// sends, a reduce-scatter as half of that.
  std::uint64_t sent_bytes() const { return sent_bytes_; }

 private:
  void count(std::span<const Parcel> parcels);

  c10::intrusive_ptr<c10d::Backend> backend_;
  SharedBackend* shared_;  // null: the back end is no SharedBackend
  bool is_gloo_;           // exchanges over Gloo are GlooExchanges
  std::vector<c10::intrusive_ptr<GlooExchange>> under_way_;
  std::chrono::milliseconds timeout_;
  std::uint64_t longest_message_;
  int rank_, world_size_;
  const std::vector<int> names_;
  std::atomic<std::uint64_t> sent_bytes_ = 0;
};

}  // namespace octavo
