// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <unordered_map>
#include <vector>

#include "octavo/device/side_streams.h"
#include "octavo/device/stream_event.h"
#include "octavo/export.h"

namespace octavo::dc {

/// Values of a graph that wait on the host between their last use in the forward pass and their first use in the
/// backward pass. The graph numbers them. Moving is asynchronous, on streams of its own. Not thread-safe. Throws Error
/// invalid_argument for a number that is not under way.
class OCTAVO_API TensorOffload {
 public:
  /// Starts to copy the values to the host, once the device's current stream has done the work that it has. Returns
  /// host memory, whose values are there after wait_offload(). It belongs to these values for as long as anyone else
  /// has it: a graph may run several times before its backward passes. After that, an offload with this number uses it
  /// again for values of this shape and dtype, or gives it up. `is_pinned`: the memory is page-locked. Throws Error
  /// out_of_memory; the number then stands for what it stood for before.
  at::Tensor offload(const at::Tensor& values, long id, bool is_pinned);
  /// Makes what the device's current stream gets from now on wait for the copy. Returns the last offload's memory.
  at::Tensor wait_offload(long id);
  /// Starts to copy values back, to memory that is kept until clear_reloaded(). Returns that memory. `values`: what
  /// offload() has returned for them; any other tensor stands for the last offload.
  at::Tensor reload(const at::Tensor& values, long id);
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
    std::vector<at::Tensor> on_host = {};  // the last offload's at the end; others have only aliases of them
    at::Tensor reloaded = {};
    std::shared_ptr<StreamEvent> offload_done = {}, reload_done = {};

    /// Takes out memory that nobody else has, for values like these, and gives up all other such memory. Returns an
    /// undefined tensor where there is none.
    at::Tensor take_free(const at::Tensor& values);
  };
  Entry& at(long id);

  std::unordered_map<long, Entry> entries_;
  SideStreams offload_streams_, reload_streams_;
};

}  // namespace octavo::dc
