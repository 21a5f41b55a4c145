// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "octavo/comm/schedule/contribution.h"
#include "octavo/export.h"

namespace octavo {

/// Where the time of buckets went, in seconds: to the codec (encode, reduce, decode; without one to preparing, which
/// counts as encode, and to checking results, as decode), and to waiting for the peers and the network (a single
/// transfer's wait counts as that of the way up).
struct PhaseSeconds {
  double encode = 0, wait_up = 0, reduce = 0, wait_down = 0, decode = 0;
  PhaseSeconds operator-(const PhaseSeconds& other) const {
    return {encode - other.encode, wait_up - other.wait_up, reduce - other.reduce, wait_down - other.wait_down,
            decode - other.decode};
  }
  PhaseSeconds operator+(const PhaseSeconds& other) const {
    return {encode + other.encode, wait_up + other.wait_up, reduce + other.reduce, wait_down + other.wait_down,
            decode + other.decode};
  }
};

struct Bucket {
  at::Tensor gradients;               // real numbers of any floating dtype, dense or sparse
  std::vector<Contribution> tensors;  // the gradients of a dense bucket, where they are, or copies in float32
  double divisor = 1;                 // of the sum over ranks
  /// Of all on which the ranks must agree: the step, the bucket's tensors and their formats. What is sent encoded
  /// begins with it, and a rank that receives another one throws Error communication.
  std::uint64_t digest = 0;
};

/// What this rank has sent of a tensor in packed payloads (Codec::pack), to all others together.
struct PackedFigures {
  std::uint64_t bytes = 0, values = 0;
  std::uint64_t reused = 0;  // of the values (Codec::reused)
  PackedFigures& operator+=(const PackedFigures& other) {
    bytes += other.bytes;
    values += other.values;
    reused += other.reused;
    return *this;
  }
};

/// `finite` and `power` are the same on all ranks that get the same results.
struct Outcome {
  bool finite;  // every result is finite
  /// By tensor: the mean square of the gradient, averaged over ranks; 0 where it is zero on every rank, never
  /// otherwise. An estimate for large tensors, from a 32nd of their elements.
  std::vector<float> power;
  /// By tensor; empty where no codec of the bucket packs.
  std::vector<PackedFigures> packed = {};
};

/// How buckets of gradients become their sums over all ranks, divided.
///
/// A bucket makes one or more transfers, one after another: begin() starts the first; advance() waits for the one under
/// way and starts the next, transfers() - 1 times (of the bucket of begin()); finish() waits for the last one. Between
/// the calls one bucket's bytes travel while another is worked on. An object does one bucket at a time and keeps its
/// buffers for the next. Each call returns when its kernels, on the device's current stream, are done. Not thread-safe;
/// all ranks make the calls for all buckets in the same order. Each throws what Wire throws; the results are then
/// undefined.
class OCTAVO_API Schedule {
 public:
  virtual ~Schedule() = default;
  virtual int transfers() const = 0;
  virtual void begin(Bucket bucket) = 0;
  virtual void advance() {}
  /// Results are there; what is remembered from step to step is written, but neither committed nor rolled back.
  virtual Outcome finish() = 0;

  /// All of the above.
  Outcome run(Bucket bucket) {
    begin(std::move(bucket));
    for (int next = 1; next < transfers(); ++next) advance();
    return finish();
  }
};

}  // namespace octavo
