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

/// Brings the managed states of a step (device/arena.h) to a device before they are used, and sends them back
/// afterwards. While the parameters of one window are updated on the current stream, a side stream moves the pages of
/// the next window and of the one before. At most three windows are on the device at once, and the host waits for
/// nothing.
///
/// On the CPU it does nothing. Pages that were evicted come back when they are touched, and the system overlaps that by
/// reading ahead; advice for each of them would cost more than the step. A pager is for one thread and one step.
class OCTAVO_API Pager {
 public:
  /// The bytes of states at which a window is full: enough for a link's full speed, little beside a device's memory. A
  /// window has all states of its parameters, so that one large parameter may fill it several times.
  static constexpr std::uint64_t kWindowBytes = std::uint64_t{32} << 20;

  /// `states` has those of each parameter, in the order of the step. States in other memory stay where they are.
  Pager(c10::Device device, std::vector<std::vector<at::Tensor>> states, std::uint64_t window_bytes = kWindowBytes);

  /// Must be called before the update of a parameter is enqueued, for each parameter in order.
  void before(std::size_t parameter);
  /// Must be called after the update of the last parameter.
  void finish();

 private:
  struct Window {
    std::size_t first;
    std::vector<at::Tensor> states;
    std::unique_ptr<StreamEvent> arrived;
  };

  void cut_windows(std::vector<std::vector<at::Tensor>> states, std::uint64_t window_bytes);
  void enter(std::size_t window);
  void bring(Window& window) const;
  static void send_back(const Window& window);

  c10::Device device_;
  std::vector<Window> windows_;
  std::size_t entered_ = 0;  // windows whose updates have begun
};

}  // namespace octavo
