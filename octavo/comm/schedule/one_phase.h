// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include "octavo/comm/schedule/scatter_sum.h"
#include "octavo/comm/schedule/schedule.h"
#include "octavo/comm/schedule/streamed_pieces.h"
#include "octavo/comm/wire.h"
#include "octavo/export.h"

namespace octavo {

/// Compressed reduce-scatter: the first half of TwoPhase, ScatterSum. Afterwards every rank keeps the sums of its own
/// ranges to itself, in float32, in the place of its own values there.
///
/// Traffic is (W-1)/W of the payload. `Contribution::down` is what the sums become at the owner: fp32, or the outcome
/// of a vote. Outcome::finite is about this rank's own results, and may differ between ranks.
class OCTAVO_API OnePhase final : public Schedule {
 public:
  /// `device`: where the contributions lie.
  OnePhase(Wire& wire, PhaseSeconds& seconds, c10::Device device = c10::kCPU)
      : wire_(wire), seconds_(seconds), device_(device), up_(wire, device), pieces_(device) {}

  int transfers() const override { return up_.transfers(); }
  void begin(Bucket bucket) override;
  void advance() override;
  Outcome finish() override;

 private:
  std::uint8_t* place(Message& sums);
  void deliver(const Message& sums, std::uint8_t* message, std::uint32_t* nonfinite);

  Wire& wire_;
  PhaseSeconds& seconds_;
  c10::Device device_;
  Bucket bucket_;
  ScatterSum up_;
  StreamedPieces pieces_;
  at::Tensor sums_;       // uint8, on the host
  at::Tensor nonfinite_;  // one word, on the host
};

}  // namespace octavo
