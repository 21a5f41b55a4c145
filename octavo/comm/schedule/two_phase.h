// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "octavo/comm/layout.h"
#include "octavo/comm/schedule/contribution.h"
#include "octavo/comm/schedule/range_coder.h"
#include "octavo/comm/wire.h"
#include "octavo/export.h"

namespace octavo {

/// Where the time of all buckets went, in seconds: to the codec (encode, reduce, decode), and to waiting for the peers
/// and the network.
struct PhaseSeconds {
  double encode = 0, wait_up = 0, reduce = 0, wait_down = 0, decode = 0;
};

struct Outcome {
  bool finite;  // every result is finite
  /// By tensor: the mean square of the gradient, averaged over ranks; 0 where it is zero on every rank, never
  /// otherwise. An estimate for large tensors, from a 32nd of their elements.
  std::vector<float> power;
};  // the same on all ranks

/// The two-phase all-reduce of compressed values: each rank sends every other owner the codes of its range
/// (all-to-all); the owner adds them up in float32, in rank order, its own values last, and encodes the sum; all ranks
/// receive all sums.
///
/// The owner decodes its own bytes like everyone else's, so that the results have the same bits on all ranks. Traffic
/// is 2(W-1)/W of the payload, whatever W. A tensor whose gradient is zero on every rank is not sent (DDP drops the
/// result of an unused parameter, and a residual sent with it would be lost): its result is its decayed momentum, and
/// its residuals must be rolled back. Both phases are all-to-alls: Gloo's all-gather takes several times as long.
///
/// An object does one bucket at a time, in three steps, so that one bucket's bytes travel while another is encoded; its
/// buffers are kept for the next. Kernels run on the device's current stream and write codes to memory of the host,
/// whose network sends them; each step returns when they are done. Not thread-safe; the steps of all buckets come in
/// the same order on all ranks.
class OCTAVO_API TwoPhase {
 public:
  /// `device`: where the contributions lie.
  TwoPhase(Wire& wire, PhaseSeconds& seconds, c10::Device device = c10::kCPU)
      : wire_(wire), seconds_(seconds), device_(device), coder_(wire.rank(), wire.world_size(), device) {}
  c10::Device device() const { return device_; }

  /// Encodes the contributions and sends them to the owners.
  void send_up(std::vector<Contribution> tensors);
  /// Waits for them, adds up the own ranges, times `result_weight` (1/W for an average), and sends the sums to all.
  void send_down(float result_weight);
  /// Waits for all sums and decodes them. Residuals are written but neither committed nor rolled back.
  Outcome finish();
  // Each throws what Wire throws; `values` are then undefined.

 private:
  bool stays_here() const;
  Outcome finish_here();
  void encode_all();
  void merge_powers();
  void reduce_own(float result_weight);
  void decode_all();
  const Message& own(const std::vector<Message>& messages) const;
  std::uint8_t* received_from(int sender);
  void exchange(at::Tensor& send, std::vector<std::uint64_t> send_bytes, at::Tensor& receive,
                std::vector<std::uint64_t> receive_bytes);

  Wire& wire_;
  PhaseSeconds& seconds_;
  c10::Device device_;
  RangeCoder coder_;
  std::vector<Contribution> tensors_;
  std::vector<float> power_;                            // by tensor
  std::vector<Message> up_, down_;                      // by owner
  at::Tensor sent_up_, got_up_, sent_down_, got_down_;  // uint8, on the host
  at::Tensor chunk_powers_;
  std::optional<Transfer> transfer_;
};

}  // namespace octavo
