// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "octavo/comm/schedule/contribution.h"
#include "octavo/comm/schedule/gather_codes.h"
#include "octavo/comm/schedule/parts.h"
#include "octavo/comm/wire.h"
#include "octavo/export.h"

namespace octavo {

/// All-gather of tensors of which every rank has its own range: afterwards all ranks have the same bits everywhere. A
/// codec that leaves something out does so in the rank's own range, too. One gather at a time; keeps its buffers. Not
/// thread-safe; all ranks make the calls for all gathers in the same order. Throws what Wire throws.
class OCTAVO_API GatherShards {
 public:
  /// `device`: where the tensors lie.
  GatherShards(Wire& wire, c10::Device device) : wire_(wire), device_(device), codes_(wire, device) {}

  /// Throws Error invalid_argument for a codec of which the size of a payload depends on the values, or which does not
  /// send all of them.
  static void require_fit(const Codec& codec);
  /// `values`: [count] of `dtype`, of which the rank's own range is there. Throws as require_fit().
  static Contribution tensor(void* values, std::uint64_t count, at::ScalarType dtype, const Codec& codec,
                             Ownership ownership);

  /// Starts the transfer, for which the tensors are read now, and written by decode_all(). `digest`: of all on which
  /// the ranks must agree.
  void begin(std::vector<Contribution> tensors, std::uint64_t digest);
  /// For what the others have sent.
  void wait();
  /// Enqueues what makes the tensors whole. As GatherCodes::decode_all().
  void decode_all(std::uint32_t* nonfinite = nullptr);

 private:
  void encode_own();

  Wire& wire_;
  c10::Device device_;
  std::vector<Contribution> tensors_;
  GatherCodes codes_;
  Parts parts_;
};

}  // namespace octavo
