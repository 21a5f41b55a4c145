// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "octavo/codec/codec_text.h"
#include "octavo/codec/linear_map.h"
#include "octavo/rules/count_sketch.h"
#include "octavo/rules/top_k.h"

namespace octavo {

/// Adds `count` values to a sketch, on all threads. Their numbers begin at input.first. All memory is the device's.
OCTAVO_API void insert_sketch(c10::Device device, const EncodeInput& input, std::uint64_t count,
                              const rules::CountSketch& shape, float* sketch);
/// Estimates the elements with numbers in [0, count), on all threads.
OCTAVO_API void estimate_sketch(c10::Device device, const float* sketch, const rules::CountSketch& shape,
                                std::uint64_t count, float* estimates);

/// The image of a tensor is its count sketch of three rows. From the mean of the sketches all ranks estimate the
/// largest elements of the mean tensor; among equal ones the first are taken. All other elements are 0 in the result.
///
/// The result may be the estimates (FetchSGD, Rothchild et al. 2020). With error feedback the error then stays in the
/// sketch, one for all ranks, and there is no residual for each element. Sketches are added up from step to step, and
/// the cells of what was taken are emptied. (The paper subtracts what was taken, which diverges: the error of an
/// estimate is subtracted too.) All steps then use the same hashes. A momentum is kept in a sketch, too, before the
/// error; what was taken begins anew in both, as in dgc.h.
///
/// Or, with `exact`, each rank sends its own values of these elements in a second round (SketchedSGD, Ivkin et al.
/// 2019): a top-k of the mean. Error feedback then needs a residual for each element, and each step draws other hashes,
/// so that no two elements disturb each other for ever.
class OCTAVO_API CountSketch final : public LinearMap {
 public:
  /// `ratio` is the number of cells for each element, at most 0.5; `taken` is the share of the elements that are taken.
  CountSketch(double ratio, double taken, bool is_exact);

  /// Returns no sizes where less than half of the tensor's floats would be saved: it is sent as it is.
  std::vector<std::uint64_t> image_sizes(const Matrix& shape, std::uint64_t step) const override;
  /// The memory holds the sketch of the error, and one of the momentum where there is one. With `exact` it holds the
  /// indices instead, from one round to the next.
  std::uint64_t memory_size(const MapInput& tensor) const override;
  bool keeps_momentum() const override { return !is_exact_; }
  bool needs_residual() const override { return is_exact_; }
  void project(c10::Device device, const MapInput& tensor, std::size_t round,
               std::span<float* const> images) const override;
  void reconstruct(c10::Device device, const MapInput& tensor, std::span<const float* const> images, float* out,
                   rules::Residual* next_residual, std::uint32_t* nonfinite) const override;

  static constexpr double kTakenOfCells = 0.125;  // elements taken for each cell, where a plan does not say

 private:
  rules::CountSketch sketch_of(const MapInput& tensor) const;
  std::uint64_t columns(const Matrix& shape) const;
  rules::TopK taken_of(const Matrix& shape) const;
  void sketch_values(c10::Device device, const MapInput& tensor, float* image) const;
  void send_exact(c10::Device device, const MapInput& tensor, const float* sketch, float* image) const;
  void take_estimates(c10::Device device, const MapInput& tensor, const float* sketch, float* out,
                      std::uint32_t* nonfinite) const;
  void take_exact(c10::Device device, const MapInput& tensor, const float* image, float* out,
                  rules::Residual* next_residual, std::uint32_t* nonfinite) const;

  double ratio_, taken_;
  bool is_exact_;
};

/// sketch:RATIO[:TAKEN][:exact]
LinearMapPtr make_count_sketch(const CodecText& text);

}  // namespace octavo
