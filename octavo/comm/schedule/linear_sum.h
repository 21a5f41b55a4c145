// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "octavo/comm/schedule/two_phase.h"

namespace octavo {

/// Sends tensors with a Mapping as images (codec/linear_map.h). The bucket's other tensors are sent as by TwoPhase,
/// with the images of the first round. Each round is a TwoPhase; images are encoded by the codec of their contribution.
/// In a world of one rank nothing is mapped.
class OCTAVO_API LinearSum final : public Schedule {
 public:
  /// `device`: where the contributions lie.
  LinearSum(Wire& wire, PhaseSeconds& seconds, c10::Device device)
      : wire_(wire), seconds_(seconds), device_(device), exchange_(wire, seconds, device) {}

  int transfers() const override { return transfers_; }
  void begin(Bucket bucket) override;
  void advance() override;
  Outcome finish() override;

 private:
  /// One mapped tensor that is under way.
  struct Mapped {
    std::size_t tensor;  // index in the bucket
    MapInput input;
    std::vector<float*> images;        // by round
    std::vector<std::uint64_t> sizes;  // of the images, in floats
    float power = 0;                   // of this rank's own gradient
  };

  void find_mapped();
  void place_images();
  void give_memory();
  void begin_round();
  void end_round();
  Contribution image(const Mapped& mapped) const;
  void reconstruct(const Mapped& mapped, std::uint32_t* nonfinite);

  Wire& wire_;
  PhaseSeconds& seconds_;
  c10::Device device_;
  TwoPhase exchange_;  // the exchange of the current round
  Bucket bucket_;
  std::vector<Mapped> mapped_;
  std::vector<std::size_t> plain_;  // the bucket's other tensors
  std::size_t rounds_ = 1, round_ = 0;
  int transfers_ = 0, begun_ = 0;  // of all rounds; of this one
  Outcome outcome_;
  at::Tensor images_, spare_memory_, chunk_powers_, nonfinite_;
};

}  // namespace octavo
