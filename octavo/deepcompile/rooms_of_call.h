// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <utility>
#include <vector>

#include "octavo/deepcompile/param_registry.h"

namespace octavo::dc {

/// The memory for whole values that a call registers. Where the call fails before keep(), perhaps for lack of memory,
/// it is released again, unless a transfer writes to it by now. Memory that has replaced older memory stays.
class RoomsOfCall {
 public:
  explicit RoomsOfCall(DSParamRegistry& registry) : registry_(registry) {}
  ~RoomsOfCall() {
    for (const long id : added_) {
      if (registry_.state(id) == Gathered::available) registry_.unregisterGatheredParam(id);
    }
  }
  RoomsOfCall(const RoomsOfCall&) = delete;
  RoomsOfCall& operator=(const RoomsOfCall&) = delete;

  /// `made_here` is that of DSParamRegistry::registerGatheredParam().
  void add(long ds_id, at::Tensor room, bool made_here = false) {
    const bool is_new = !registry_.hasGatheredParam(ds_id);
    registry_.registerGatheredParam(ds_id, std::move(room), made_here);
    if (is_new) added_.push_back(ds_id);
  }
  void keep() { added_.clear(); }

 private:
  DSParamRegistry& registry_;
  std::vector<long> added_;
};

}  // namespace octavo::dc
