// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "octavo/deepcompile/param_gather.h"
#include "octavo/deepcompile/registry.h"
#include "octavo/export.h"

namespace octavo::dc {

/// Whole parameters in memory that is the caller's alone, as a compiled graph needs it: it may use that memory for
/// something else after its last use of the parameter. The registry therefore does not keep it: values that others wait
/// for, or that stay for the step, are in other memory. Not thread-safe; all ranks make the calls in the same order.
/// Throws what ParamGather throws.
class OCTAVO_API FreshGather {
 public:
  /// `gather`: that of all graphs of the engine, with the same registry.
  FreshGather(std::shared_ptr<ParamGather> gather, std::shared_ptr<DSParamRegistry> registry)
      : gather_(std::move(gather)), registry_(std::move(registry)) {}

  /// Starts one transfer for what is neither valid nor on its way. Returns tensors of the parameters' shapes, whose
  /// values are there after wait(). `dtypes`: of them, one for each; those of the parameters where it is empty.
  std::vector<at::Tensor> start(std::span<const long> ids, std::span<const at::ScalarType> dtypes);
  /// Once for each start(): until the values are in `gathered`, which are those tensors or copies of them. Throws Error
  /// invalid_argument where there was no start, or another shape comes back.
  void wait(at::TensorList gathered, std::span<const long> ids);

  /// Throws Error invalid_argument where one of these was started more often than waited for, so that values were used
  /// that had perhaps not come; these starts are forgotten.
  void require_waited(std::span<const long> ids);
  /// Starts that were not waited for are forgotten, as after an error.
  void clear() { awaited_.clear(); }

 private:
  at::Tensor make_room(long id, at::ScalarType dtype);
  void wait_one(const at::Tensor& gathered, long id);
  bool is_kept_by_registry_alone(long id) const;

  std::shared_ptr<ParamGather> gather_;
  std::shared_ptr<DSParamRegistry> registry_;
  std::unordered_map<long, int> awaited_;  // starts that were not waited for
};

}  // namespace octavo::dc
