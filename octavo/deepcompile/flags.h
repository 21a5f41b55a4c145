// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace octavo::dc {

/// Settings of an engine, by DeepSpeed's names. The thread that uses the engine may change them at any time, alike on
/// all ranks.
struct Flags {
  /// A pass that only measures: gradients of reduce_grad() are not reduced, and tensors are not freed.
  bool profile = false;
  /// Gradients are divided by the number of ranks in their own dtype, before they are added up. Otherwise their sum is
  /// divided, which is formed in float32. Must be set before the first graph.
  bool pre_div_reduce = false;
  /// free_tensors() frees tensors that are larger than this, in bytes. The operator dc::free_tensors names no graph,
  /// and goes by the flags of the default engine.
  std::int64_t free_activation_threshold = 10 << 20;
  /// For measurements and to find defects: the thread waits for all work of the device before a transfer is started, or
  /// for the transfer itself and what is done with its result.
  bool sync_before_reduce = false, sync_after_reduce = false;
  bool sync_before_allgather = false, sync_after_allgather = false;
  /// offload_tensor() sends values to page-locked memory, so that the device goes on meanwhile.
  bool offload_activation_pin_memory = true;
};

}  // namespace octavo::dc
