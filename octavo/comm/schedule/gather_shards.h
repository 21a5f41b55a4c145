// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "octavo/comm/contribution.h"
#include "octavo/comm/schedule/gather_codes.h"
#include "octavo/comm/schedule/streamed_pieces.h"
#include "octavo/comm/wire.h"
#include "octavo/export.h"

namespace octavo {

/// All-gather of tensors where every rank has its own range. Afterwards all ranks have the same bits everywhere: a
/// codec that leaves something out does so in the rank's own range, too. It makes one gather at a time and keeps its
/// buffers. Not thread-safe. All ranks make the calls for all gathers in the same order. Throws what Wire throws.
class OCTAVO_API GatherShards {
 public:
  /// `device`: where the tensors lie.
  GatherShards(Wire& wire, c10::Device device) : wire_(wire), device_(device), codes_(wire, device), pieces_(device) {}

  /// Throws Error invalid_argument for a codec whose payload size depends on the values, that does not send all values,
  /// or that rounds them at random: each gather would draw the same bits.
  static void require_fit(const Codec& codec);
  /// `values`: [count] of `dtype`, in which the rank's own range is there. Throws as require_fit().
  static Contribution tensor(void* values, std::uint64_t count, at::ScalarType dtype, const Codec& codec,
                             Ownership ownership);

  /// Starts the transfer. It reads the tensors now; decode_all() writes them. `digest`: of all that the ranks must
  /// agree on.
  void begin(std::vector<Contribution> tensors, std::uint64_t digest);
  /// Waits for what the others have sent.
  void wait();
  /// Enqueues the decoding that makes the tensors whole, as GatherCodes::decode_shards() does.
  void decode_all(std::uint32_t* nonfinite = nullptr);

 private:
  void encode_own();

  Wire& wire_;
  c10::Device device_;
  std::vector<Contribution> tensors_;
  GatherCodes codes_;
  StreamedPieces pieces_;
};

}  // namespace octavo
