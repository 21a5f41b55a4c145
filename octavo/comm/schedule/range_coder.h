// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "octavo/comm/layout.h"
#include "octavo/comm/schedule/contribution.h"

namespace octavo {

/// The arithmetic of the two-phase schedule on a range of a tensor that one rank owns: the sender encodes it, the
/// owner adds it up and encodes the sum, everybody decodes the sum. Tensors and residuals lie on the device, payloads
/// in memory of reserve_on_host. Kernels are enqueued on the device's current stream: wait_for_current_stream before a
/// payload is sent. Residuals are written, but neither committed nor rolled back. Not thread-safe: it keeps memory for
/// the next range.
class RangeCoder {
 public:
  RangeCoder(int rank, int world_size, c10::Device device) : rank_(rank), world_size_(world_size), device_(device) {}

  /// Begins a bucket: all that is decoded from here on is finite, as far as is_finite() knows.
  void begin();
  /// Whether all results were; to be asked when the device's current stream was waited for.
  bool is_finite() const;

  /// Encodes this rank's contribution to another's range.
  void encode_up(const Contribution& tensor, Range range, std::uint8_t* out) const;

  /// Adds up, in float32, the others' contributions to this rank's range (`payloads`, in rank order), then its own
  /// values, and encodes `result_weight` times the sum.
  void reduce(const Contribution& tensor, Range range, const std::vector<std::uint8_t*>& payloads, std::uint8_t* out,
              float result_weight);

  /// Decodes the sum into the tensor.
  void decode_down(const Contribution& tensor, Range range, std::uint8_t* payload) const;

  /// Makes the result of a tensor that need not cross the wire, in its place.
  void combine(const Contribution& tensor);

 private:
  std::uint32_t* nonfinite() const { return reinterpret_cast<std::uint32_t*>(nonfinite_.mutable_data_ptr()); }
  std::uint64_t part_size(Format up, Format down) const;
  EncodeInput own_votes(const Contribution& tensor, Range range, Range part);
  const float* sum_of_others(const Contribution& tensor, Range range, Range part,
                             const std::vector<std::uint8_t*>& payloads);

  int rank_, world_size_;
  c10::Device device_;
  at::Tensor nonfinite_;                    // one word, which decoding sets
  at::Tensor sum_, signs_, votes_, exact_;  // of a part of a range, as bytes: float32, float32, codes, float32
};

}  // namespace octavo
