// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "octavo/export.h"

namespace c10d {
class Backend;
class Work;
}  // namespace c10d

namespace octavo {

class GlooExchange;
class Posting;
class SharedBackend;

/// Bytes that a rank sends in a ring all-reduce of `payload_bytes` over so many ranks.
OCTAVO_API std::uint64_t ring_bytes(std::uint64_t payload_bytes, int ranks);

/// What one rank sends another: bytes of a buffer.
struct Parcel {
  std::uint64_t offset = 0, bytes = 0;
};

/// A view. `buffer`: uint8, of one dimension.
at::Tensor part_of(const at::Tensor& buffer, const Parcel& parcel);
/// Without the backtrace that torch adds.
std::string said_by(const std::exception& error);

/// Parcels of so many bytes, by receiver, of which each begins where the one before ends.
OCTAVO_API std::vector<Parcel> one_after_another(std::span<const std::uint64_t> bytes);

/// A transfer under way. wait() blocks until it is done; it throws what Wire throws, and must be called.
class OCTAVO_API Transfer {
 public:
  /// `from`: of an exchange, where what each rank sends will lie.
  Transfer(c10::intrusive_ptr<c10d::Work> work, int rank, std::chrono::milliseconds deadline,
           std::vector<std::uint8_t*> from = {});
  Transfer(std::unique_ptr<Posting> posting, int rank, std::chrono::milliseconds deadline);
  ~Transfer();
  Transfer(Transfer&&) noexcept;
  Transfer& operator=(Transfer&&) noexcept;

  void wait();
  /// What `sender` has sent in an exchange that was waited for: in the buffer for it, or in that rank's own memory, to
  /// be read while this object lives.
  std::uint8_t* from(int sender) const;

 private:
  c10::intrusive_ptr<c10d::Work> work_;
  std::unique_ptr<Posting> posting_;
  std::vector<std::uint8_t*> from_;
  int rank_;
  std::chrono::milliseconds deadline_;
};

/// A process group's backend as Octavo uses it: bytes from rank to rank with a deadline, and an account of what was
/// sent.
///
/// Where the back end is a SharedBackend, what is sent need not be copied: it is written to memory of reserve_to_send()
/// and read there by the others.
///
/// Bytes only (uint8): Gloo rejects other small types, and no transport may add packed bytes. All ranks must make the
/// same calls in the same order. Throws Error communication
/// where a peer fails (the process group must then be rebuilt), timeout after the deadline.
class OCTAVO_API Wire {
 public:
  /// `backend`: it has a name (getBackendName). `longest_message`: that a rank sends to another one, whatever it does;
  /// 0: not known (expect()).
  Wire(c10::intrusive_ptr<c10d::Backend> backend, std::chrono::milliseconds deadline,
       std::uint64_t longest_message = 0);
  ~Wire();
  Wire(const Wire&) = delete;
  Wire& operator=(const Wire&) = delete;

  int rank() const { return rank_; }
  int world_size() const { return world_size_; }

  /// Sends rank r the parcel parcels[r] of `send`, which several may get, and receives `receive_bytes[r]` bytes from
  /// it, in rank order. The buffers belong to the transfer until it was waited for. What nobody waits for, because this
  /// rank has failed meanwhile, still reaches the others while this object lives.
  [[nodiscard]] Transfer exchange(const at::Tensor& send, std::span<const Parcel> parcels, at::Tensor& receive,
                                  std::span<const std::uint64_t> receive_bytes);

  /// From now on a rank may send another one that many bytes in a message, though it should send fewer.
  void expect(std::uint64_t longest_message) { longest_message_ = room_for(longest_message); }
  /// What to receive a message of `bytes` bytes with, so that who sends another one is found by what it begins with:
  /// Gloo ends the process of who receives more than it has room for, and is content with less.
  std::uint64_t room_for(std::uint64_t bytes) const { return bytes < longest_message_ ? longest_message_ : bytes; }

  /// Whether exchange_in_place() may be called, of what kernels of this device write and read.
  bool shares_memory(c10::Device device) const;
  /// At least `bytes` bytes for what is to be sent next, as reserve_on_host(); what is under way of the buffer stays.
  std::uint8_t* reserve_to_send(at::Tensor& buffer, std::uint64_t bytes, c10::Device device);
  /// As exchange(), of memory of reserve_to_send(); Transfer::from() has what comes, until when the others read what
  /// was sent.
  [[nodiscard]] Transfer exchange_in_place(const at::Tensor& send, std::span<const Parcel> parcels,
                                           std::span<const std::uint64_t> receive_bytes);

  /// The process group's own all-reduce by sum, in place. The tensor belongs to the transfer until it was waited for.
  [[nodiscard]] Transfer start_all_reduce(at::Tensor& tensor);
  /// The same, and waits for it.
  void all_reduce(at::Tensor& tensor) { start_all_reduce(tensor).wait(); }

  /// The process group's own reduce-scatter by sum: `output`, of a W-th of the size of `input`, gets the sum of the
  /// rank-th part. Both belong to the transfer until it was waited for.
  [[nodiscard]] Transfer start_reduce_scatter(at::Tensor& output, at::Tensor& input);

  /// Bytes that this rank has sent to others. An all-reduce counts as the 2(W-1)/W of its size that a ring sends,
  /// a reduce-scatter as half of that.
  std::uint64_t sent_bytes() const { return sent_bytes_; }

 private:
  void count(std::span<const Parcel> parcels);

  c10::intrusive_ptr<c10d::Backend> backend_;
  SharedBackend* shared_;  // the back end; null: it is another one
  bool is_gloo_;           // which has exchanges of its own
  std::vector<c10::intrusive_ptr<GlooExchange>> under_way_;
  std::chrono::milliseconds deadline_;
  std::uint64_t longest_message_;
  int rank_, world_size_;
  std::atomic<std::uint64_t> sent_bytes_ = 0;
};

}  // namespace octavo
