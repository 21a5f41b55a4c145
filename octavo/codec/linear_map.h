// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "octavo/codec/codec.h"
#include "octavo/export.h"
#include "octavo/kernels/operands.h"

/// Maps tensors to fewer floats, which may be added up over ranks.
namespace octavo {

/// The shape of a tensor as a matrix, row by row: the rows are its first dimension, the columns all others.
struct Matrix {
  std::uint64_t rows = 1, columns = 0;
  std::uint64_t count() const { return rows * columns; }
};

/// One rank's tensor, as a map sees it. `values` are read in several calls; they include what the last step left over.
struct MapInput {
  Matrix shape;
  EncodeInput values;
  bool error_feedback = false;
  float momentum = 0;      // with error feedback, where the map keeps one: the momentum of the results; 0: none
  std::uint64_t step = 0;  // counted from 1
  std::uint64_t key = 0;   // equal on all ranks, different in every step, for every parameter and for every seed
  std::uint64_t seed = 0;  // the run's, equal on all ranks
  /// Floats that are kept from step to step, LinearMap::memory_size() of them, on the device and equal on all ranks.
  /// `memory` is from the last step, null where there was none; `next_memory` is for the next one. A step with a NaN is
  /// undone, and its `next_memory` dropped.
  const float* memory = nullptr;
  float* next_memory = nullptr;
};

/// A map that is linear in the values, given what all ranks know: the mean of the images is the image of the mean. From
/// it every rank reconstructs the same approximation of the mean. Images are sent in one or more rounds; a later round
/// may depend on the means of those before. Objects are immutable. Work is done on the device's current stream. The
/// bits depend neither on threads nor on the device. What is not finite reaches the results as NaN, on all ranks.
class OCTAVO_API LinearMap {
 public:
  virtual ~LinearMap() = default;
  LinearMap(const LinearMap&) = delete;
  LinearMap& operator=(const LinearMap&) = delete;

  /// The map's text as a plan writes it: "powersgd:4".
  const std::string& text() const { return text_; }
  /// The hash of the text, the same on every machine.
  std::uint64_t fingerprint() const { return fingerprint_; }

  /// The number of floats of the image in each round. Empty: too little would be saved, and the tensor is sent as it
  /// is.
  virtual std::vector<std::uint64_t> image_sizes(const Matrix& shape, std::uint64_t step) const = 0;
  virtual std::uint64_t memory_size(const MapInput& tensor) const = 0;
  /// Whether the memory may hold a momentum.
  virtual bool keeps_momentum() const { return false; }
  /// Whether error feedback needs a residual for each value. Otherwise the map keeps what it needs in its memory.
  virtual bool needs_residual() const = 0;

  /// Writes images[round], on the device. The images of earlier rounds are the means over ranks.
  virtual void project(c10::Device device, const MapInput& tensor, std::size_t round,
                       std::span<float* const> images) const = 0;
  /// Writes the result to `out`, which may lie where the gradient is, what the result leaves over (null: not wanted),
  /// and the memory. Sets *nonfinite (as in Codec::decode) where a result is a NaN or an infinity.
  virtual void reconstruct(c10::Device device, const MapInput& tensor, std::span<const float* const> images, float* out,
                           rules::Residual* next_residual, std::uint32_t* nonfinite) const = 0;

 protected:
  explicit LinearMap(std::string text) : text_(std::move(text)), fingerprint_(fingerprint_of(text_)) {}

 private:
  std::string text_;
  std::uint64_t fingerprint_;
};

using LinearMapPtr = std::shared_ptr<const LinearMap>;

}  // namespace octavo
