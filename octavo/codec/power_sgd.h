// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "octavo/codec/codec_text.h"
#include "octavo/codec/linear_map.h"
#include "octavo/rules/low_rank.h"

namespace octavo {

/// PowerSGD (Vogels, Karimireddy and Jaggi 2019): a matrix becomes the product of two factors of low rank. Each step
/// makes one step of the power method, which begins with the factors of the step before. The first round sends the left
/// factor, found with the right one of the step before. The second sends the right factor, found with that left one,
/// made orthonormal. `alternating` (Cho et al. 2019, arXiv 2008.01425) sends one factor per step in turn, with half of
/// the bytes and of the latency.
class OCTAVO_API PowerSgd final : public LinearMap {
 public:
  PowerSgd(std::uint64_t rank, bool is_alternating);

  std::vector<std::uint64_t> image_sizes(const Matrix& shape, std::uint64_t step) const override;
  /// The memory holds the two factors, the left one first.
  std::uint64_t memory_size(const MapInput& tensor) const override { return factors_size(tensor.shape); }
  bool needs_residual() const override { return true; }
  void project(c10::Device device, const MapInput& tensor, std::size_t round,
               std::span<float* const> images) const override;
  void reconstruct(c10::Device device, const MapInput& tensor, std::span<const float* const> images, float* out,
                   rules::Residual* next_residual, std::uint32_t* nonfinite) const override;

 private:
  rules::LowRank low_rank(const Matrix& shape) const;
  std::uint64_t factors_size(const Matrix& shape) const;
  void begin(c10::Device device, const MapInput& tensor) const;
  bool is_left(std::uint64_t step, std::size_t round) const;

  std::uint64_t rank_;
  bool is_alternating_;
};

LinearMapPtr make_power_sgd(const CodecText& text);

}  // namespace octavo
