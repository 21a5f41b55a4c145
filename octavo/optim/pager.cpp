// SPDX-License-Identifier: Apache-2.0
#include "octavo/optim/pager.h"

#include <utility>

#include "octavo/device/arena.h"
#include "octavo/device/side_streams.h"
#include "octavo/device/stream_event.h"

namespace octavo {

namespace {

/// The side streams of each thread that makes steps. A device's streams exist as long as the process, so a step must
/// not make its own.
SideStreams& paging_streams() {
  thread_local SideStreams streams;
  return streams;
}

}  // namespace

Pager::Pager(c10::Device device, std::vector<std::vector<at::Tensor>> states, std::uint64_t window_bytes)
    : device_(device) {
  if (!device.is_cpu()) cut_windows(std::move(states), window_bytes);
}

/// Never parts the states of a parameter: its update uses all of them, and a window is sent back before the update that
/// begins the next one.
void Pager::cut_windows(std::vector<std::vector<at::Tensor>> states, std::uint64_t window_bytes) {
  std::uint64_t bytes = window_bytes;
  for (std::size_t i = 0; i < states.size(); ++i) {
    bool may_begin = bytes >= window_bytes;
    for (at::Tensor& state : states[i]) {
      if (!is_managed(state)) continue;
      if (may_begin) {
        windows_.push_back({.first = i, .states = {}, .arrived = nullptr});
        bytes = 0;
        may_begin = false;
      }
      bytes += state.nbytes();
      windows_.back().states.push_back(std::move(state));
    }
  }
}

void Pager::before(std::size_t parameter) {
  for (; entered_ < windows_.size() && windows_[entered_].first <= parameter; ++entered_) {
    enter(entered_);
    windows_[entered_].arrived->block(current_stream_of(device_));
  }
}

void Pager::finish() {
  if (windows_.empty()) return;
  const auto is_current = paging_streams().hand_over(device_).take();
  send_back(windows_.back());
}

/// Moves pages on the side stream, once the current stream has reached the beginning of a window: those of the windows
/// before and after it, and of the very first window itself.
void Pager::enter(std::size_t window) {
  const auto is_current = paging_streams().hand_over(device_).take();
  if (window == 0) {
    bring(windows_[window]);
  } else {
    send_back(windows_[window - 1]);
  }
  if (window + 1 < windows_.size()) bring(windows_[window + 1]);
}

void Pager::bring(Window& window) const {
  for (const at::Tensor& state : window.states) prefetch(state);
  window.arrived = make_event(device_.type(), /*timing=*/false);
  window.arrived->record(current_stream_of(device_));
}

void Pager::send_back(const Window& window) {
  for (const at::Tensor& state : window.states) evict(state);
}

}  // namespace octavo
