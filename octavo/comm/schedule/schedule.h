// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "octavo/comm/contribution.h"
#include "octavo/export.h"

namespace octavo {

/// Where the time of buckets went, in seconds: to the codec (encode, reduce, decode), and to waiting for the peers and
/// the network. Without a codec, encode is the time of preparing, and decode that of checking results. A single
/// transfer's wait counts as that of the way up.
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

/// The least number of buckets that are under way at once where buckets follow one another (DdpHook): others are sent
/// while one is waited for.
constexpr int kBucketsUnderWay = 2;

struct Bucket {
  at::Tensor gradients;               // real numbers of any floating dtype, dense or sparse
  std::vector<Contribution> tensors;  // the gradients of a dense bucket, where they lie, or copies in float32
  double divisor = 1;                 // of the sum over ranks
  /// A digest of all that the ranks must agree on: the step, the bucket's tensors and their formats. Every encoded
  /// message begins with it, and a rank that receives another one throws Error communication.
  std::uint64_t digest = 0;
};

/// What this rank has sent of a tensor in packed payloads (Codec::pack), to all others together.
struct PackedFigures {
  std::uint64_t bytes = 0, values = 0;
  std::uint64_t reused = 0;  // how many of the values receivers are told to reuse (Codec::reused)
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
  /// By tensor: the mean square of the gradient, averaged over ranks. It is 0 where the gradient is zero on every rank,
  /// never otherwise. For large tensors it is an estimate from a 32nd of their elements.
  std::vector<float> power;
  /// The figures by tensor; empty where no codec of the bucket packs.
  std::vector<PackedFigures> packed = {};
};

/// How buckets of gradients become their sums over all ranks, divided.
///
/// A bucket makes one or more transfers, one after another; transfers() returns their number for the bucket of begin().
/// begin() starts the first one. Each call of advance() waits for the transfer under way and starts the next one;
/// finish() waits for the last one. Between the calls one bucket's bytes are sent while another bucket is worked on. An
/// object does one bucket at a time and keeps its buffers for the next. Each call returns when its kernels, on the
/// device's current stream, are done. Not thread-safe. All ranks make the calls for all buckets in the same order. Each
/// call throws what Wire throws; the results are then undefined.
class OCTAVO_API Schedule {
 public:
  virtual ~Schedule() = default;
  virtual int transfers() const = 0;
  virtual void begin(Bucket bucket) = 0;
  virtual void advance() {}
  /// Returns when the results are there. What is remembered from step to step is written, but neither committed nor
  /// rolled back.
  virtual Outcome finish() = 0;

  /// Does all of the above for one bucket.
  Outcome run(Bucket bucket) {
    begin(std::move(bucket));
    for (int next = 1; next < transfers(); ++next) advance();
    return finish();
  }
};

}  // namespace octavo
