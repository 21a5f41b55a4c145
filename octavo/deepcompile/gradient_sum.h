// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "octavo/comm/compressor.h"
#include "octavo/comm/layout.h"
#include "octavo/deepcompile/reduce_bucket.h"
#include "octavo/export.h"

namespace octavo::dc {

/// A parameter whose gradients are summed up.
struct SummedParam {
  long id;
  std::string name;  // by which a plan's rules and its residuals know it
  std::vector<std::int64_t> shape;
  bool exempt = false;  // is sent in float32 whatever the plan says
};

/// The gradients of an engine's parameters on their way to the ranks that own their parts, by a plan. Each rank owns an
/// equal share of every parameter, in its flat order (Ownership::shares). Not thread-safe; all ranks make the calls in
/// the same order, with the same parameters. Throws what Compressor does.
class OCTAVO_API GradientSum {
 public:
  /// `paging`: of what the plan remembers.
  GradientSum(std::unique_ptr<Wire> wire, const Plan& plan, std::vector<SummedParam> params, StatePaging paging = {});

  /// What this rank owns of a parameter. Throws Error invalid_argument for an id that is none of these.
  Range owned(long id) const;

  /// A backward pass begins. What the plan remembers is that of whole passes.
  void begin_pass();
  /// Whether gradients may lie apart from their bucket (Compressor::takes_apart).
  bool takes_apart(at::ScalarType dtype) const { return compressor_->takes_apart(dtype); }
  /// Starts to send the gradients of `tasks`, slices of `bucket` or apart from it, which must stay until receive(). One
  /// bucket at a time.
  void send(const at::Tensor& bucket, std::vector<ReduceTask> tasks);
  /// Waits for it. Returns its tasks, of whose values the owned ranges are the averages now, and the rest is undefined;
  /// nothing where none was sent.
  std::vector<ReduceTask> receive();

  Compressor& compressor() { return *compressor_; }

 private:
  std::size_t index_of(long id) const;
  std::string doing() const;

  std::vector<SummedParam> params_;
  std::unordered_map<long, std::size_t> indices_;
  std::unique_ptr<Compressor> compressor_;
  std::unordered_set<long> in_step_;
  std::vector<ReduceTask> sent_;
  std::unique_ptr<Compressor::Job> job_;
};

}  // namespace octavo::dc
