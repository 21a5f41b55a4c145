// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <unordered_map>

#include "octavo/device/side_streams.h"
#include "octavo/device/stream_event.h"
#include "octavo/export.h"

namespace octavo::dc {

/// Values of a graph that wait on the host between their last use in the forward pass and their first one in the
/// backward pass, by numbers that are the graph's. Moving is asynchronous, on streams of its own. Not thread-safe.
/// Throws Error invalid_argument for a number that is not under way.
class OCTAVO_API TensorOffload {
 public:
  /// Starts to copy the values to the host, when the device's current stream is done with what it has. Returns the
  /// host's memory, which is used again by the next offload of values of this shape and dtype; its values are there
  /// after wait_offload(). `is_pinned`: page-locked.
  at::Tensor offload(const at::Tensor& values, long id, bool is_pinned);
  /// What the device's current stream gets from now on waits for the copy, or the thread for the host. Returns the
  /// host's memory.
  at::Tensor wait_offload(long id);
  /// Starts to copy the values back, to memory that is kept until clear_reloaded(), and returns that.
  at::Tensor reload(long id);
  /// What the device's current stream gets from now on waits for the values, which are returned.
  at::Tensor wait_reload(long id);
  /// As wait_reload(), and leaves the memory to who has it.
  void hand_over_reloaded(long id);
  bool is_reloading(long id) const { return entries_.contains(id) && entries_.at(id).reloaded.defined(); }

  /// After a backward pass: gives up what was brought back. The host's memory stays for the next step.
  void clear_reloaded();

 private:
  struct Entry {
    c10::Device device;
    at::Tensor on_host = {}, reloaded = {};
    std::shared_ptr<StreamEvent> offload_done = {}, reload_done = {};
  };
  Entry& at(long id);

  std::unordered_map<long, Entry> entries_;
  SideStreams offload_streams_, reload_streams_;
};

}  // namespace octavo::dc
