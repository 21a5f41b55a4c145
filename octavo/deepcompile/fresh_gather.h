// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "octavo/deepcompile/param_gather.h"
#include "octavo/deepcompile/param_registry.h"
#include "octavo/deepcompile/rooms_of_call.h"
#include "octavo/export.h"

namespace octavo::dc {

/// The gather of whole parameters to memory that only the caller has. A compiled graph needs this, because it may use
/// that memory for something else after its last use of the parameter. The registry therefore does not keep the memory:
/// values that others wait for, or that stay for the step, are in other memory. Not thread-safe; all ranks make the
/// calls in the same order. Throws what ParamGather throws.
class OCTAVO_API FreshGather {
 public:
  /// `gather` is that of all graphs of the engine, and has the same registry.
  FreshGather(std::shared_ptr<ParamGather> gather, std::shared_ptr<DSParamRegistry> registry)
      : gather_(std::move(gather)), registry_(std::move(registry)) {}

  /// Starts to gather what is neither valid nor on its way, as ParamGather::start() does. Returns tensors of the
  /// parameters' shapes, whose values are there after wait(). `dtypes` has the dtype of each; empty: the parameters'
  /// own dtypes.
  std::vector<at::Tensor> start(std::span<const long> ids, std::span<const at::ScalarType> dtypes);
  /// Waits until the values are in `gathered`, which are the tensors of a start() or copies of them. Must be called
  /// once for each start(). Throws Error invalid_argument where there was no start, or for tensors of another shape.
  void wait(at::TensorList gathered, std::span<const long> ids);

  /// Throws Error invalid_argument where one of these was started more often than waited for: values were then used
  /// that had perhaps not come. Forgets these starts.
  void require_waited(std::span<const long> ids);
  void require_all_waited();
  /// Forgets starts that were not waited for, as after an error.
  void clear() { awaited_.clear(); }

 private:
  at::Tensor make_room(long id, at::ScalarType dtype, RoomsOfCall& rooms);
  void wait_one(const at::Tensor& gathered, long id);
  bool is_kept_by_registry_alone(long id) const;

  std::shared_ptr<ParamGather> gather_;
  std::shared_ptr<DSParamRegistry> registry_;
  std::unordered_map<long, int> awaited_;  // starts that were not waited for
};

}  // namespace octavo::dc
