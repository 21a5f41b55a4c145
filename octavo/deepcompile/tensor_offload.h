// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <unordered_map>

#include "octavo/device/side_streams.h"
#include "octavo/device/stream_event.h"
#include "octavo/export.h"

namespace octavo::dc {

/// Values of a graph that wait on the host between their last use in the forward pass and their first use in the
/// backward pass. The graph numbers them. Moving is asynchronous, on streams of its own. Not thread-safe. Throws Error
/// invalid_argument for a number that is not under way.
class OCTAVO_API TensorOffload {
 public:
  /// Starts to copy the values to the host, once the device's current stream has done the work that it has. Returns the
  /// host's memory, whose values are there after wait_offload(). The next offload with this number uses it again for
  /// values of this shape and dtype. `is_pinned`: the memory is page-locked. Throws Error out_of_memory; the number
  /// then stands for what it stood for before.
  at::Tensor offload(const at::Tensor& values, long id, bool is_pinned);
  /// Makes what the device's current stream gets from now on wait for the copy. Returns the host's memory.
  at::Tensor wait_offload(long id);
  /// Starts to copy the values back, to memory that is kept until clear_reloaded(). Returns that memory.
  at::Tensor reload(long id);
  /// Makes what the device's current stream gets from now on wait for the values, and returns them.
  at::Tensor wait_reload(long id);
  /// Does what wait_reload() does, and leaves the memory to whoever has it.
  void hand_over_reloaded(long id);
  bool is_reloading(long id) const { return entries_.contains(id) && entries_.at(id).reloaded.defined(); }

  /// Gives up what was brought back, after a backward pass. The host's memory stays for the next step.
  void clear_reloaded();

 private:
  struct Entry {
    c10::Device device;
    at::Tensor on_host = {}, reloaded = {};
    std::shared_ptr<StreamEvent> offload_done = {}, reload_done = {};

    /// Whether the host's memory is for values like these.
    bool fits(const at::Tensor& values) const;
  };
  Entry& at(long id);

  std::unordered_map<long, Entry> entries_;
  SideStreams offload_streams_, reload_streams_;
};

}  // namespace octavo::dc
