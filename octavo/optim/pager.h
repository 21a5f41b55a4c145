// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "octavo/device/stream_event.h"
#include "octavo/export.h"

namespace octavo {

/// Brings the managed states of a step (device/arena.h) to a device before they are used, and sends them home behind
/// it: while the parameters of one window are updated on the current stream, a side stream moves the pages of the next
/// window and of the one before. At most three windows are on the device at once, and the host waits for nothing.
///
/// On the CPU it does nothing: pages that were evicted come back when they are touched, which the system overlaps by
/// reading ahead, while advice for each of them would cost more than the step. For one thread, and one step.
class OCTAVO_API Pager {
 public:
  /// What windows hold at least, in bytes of pages: enough for a link's full speed, little beside a device's memory.
  static constexpr std::uint64_t kWindowBytes = std::uint64_t{32} << 20;

  /// `states`: of each parameter, in the order of the step; those in other memory are left alone.
  Pager(c10::Device device, std::vector<std::vector<at::Tensor>> states, std::uint64_t window_bytes = kWindowBytes);

  /// Before the update of a parameter is enqueued; of each in its order.
  void before(std::size_t parameter);
  /// After the update of the last one.
  void finish();

 private:
  struct Window {
    std::size_t first;
    std::vector<at::Tensor> states;
    std::unique_ptr<StreamEvent> arrived;
  };

  void cut_windows(std::vector<std::vector<at::Tensor>> states, std::uint64_t window_bytes);
  void move_pages(std::size_t entered);

  c10::Device device_;
  std::vector<Window> windows_;
  std::size_t entered_ = 0;  // windows whose updates have begun
};

}  // namespace octavo
