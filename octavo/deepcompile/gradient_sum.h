// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "octavo/comm/compressor.h"
#include "octavo/comm/ownership.h"
#include "octavo/deepcompile/reduce_bucket.h"
#include "octavo/export.h"

namespace octavo::dc {

/// A parameter whose gradients are summed up.
struct SummedParam {
  long id;
  std::string name;  // the name in a plan's rules and in its residuals
  std::vector<std::int64_t> shape;
  bool exempt = false;  // is sent in float32 whatever the plan says
};

/// Averages an engine's gradients by a plan, at the ranks that own their parts. Each rank owns an equal share of every
/// parameter, in its flat order (Ownership::equal_ranges). Not thread-safe; all ranks make the calls in the same order,
/// with the same parameters. Throws what Compressor throws.
class OCTAVO_API GradientSum {
 public:
  /// `paging` is for what the plan remembers, `seed` for what it draws (CompressorOptions).
  GradientSum(std::unique_ptr<Wire> wire, const Plan& plan, std::vector<SummedParam> params, StatePaging paging = {},
              std::uint64_t seed = 0);

  /// Returns the range that this rank owns of a parameter. Throws Error invalid_argument for an id that is none of
  /// these.
  Range owned(long id) const;

  /// Begins a backward pass, which is one step for what the plan remembers, or several where a parameter is sent again.
  void begin_pass();
  /// Whether the last pass was several steps: what was left out in its first ones is kept already.
  bool is_split() const { return is_split_; }
  /// Forgets a pass that was broken off, also what is under way, which nobody waits for. What the plan remembers is
  /// again what it was before the pass.
  void give_up_pass();
  /// Whether gradients may lie apart from their bucket (Compressor::takes_apart).
  bool takes_apart(at::ScalarType dtype) const { return compressor_->takes_apart(dtype); }
  /// Starts to send the gradients of `tasks`. They are slices of `bucket` or lie apart from it, and must stay until
  /// receive(). One bucket at a time.
  void send(const at::Tensor& bucket, std::vector<ReduceTask> tasks);
  /// Waits for what was sent and returns its tasks; none where nothing was sent. In their values the owned ranges are
  /// the averages now, and the rest is undefined.
  std::vector<ReduceTask> receive();

  Compressor& compressor() { return *compressor_; }

 private:
  std::size_t index_of(long id) const;
  std::string context() const;

  std::vector<SummedParam> params_;
  std::unordered_map<long, std::size_t> indices_;
  std::unique_ptr<Compressor> compressor_;
  bool is_split_ = false;
  std::vector<ReduceTask> sent_;
  std::unique_ptr<Compressor::Job> job_;
};

}  // namespace octavo::dc
