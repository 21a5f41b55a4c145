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
  while (entered_ < windows_.size() && windows_[entered_].first <= parameter) {
    move_pages(entered_);
    windows_[entered_].arrived->block(current_stream_of(device_));
    ++entered_;
  }
}

void Pager::finish() {
  if (!windows_.empty()) move_pages(windows_.size());
}

/// Moves pages on the side stream, once the current stream has reached the beginning of a window or the end. Evicts the
/// window before and prefetches the next one; at the very first window, that one too.
void Pager::move_pages(std::size_t entered) {
  const auto is_current = paging_streams().hand_over(device_).take();
  if (entered > 0) {
    for (const at::Tensor& state : windows_[entered - 1].states) evict(state);
  }
  for (std::size_t i = entered == 0 ? 0 : entered + 1; i <= entered + 1 && i < windows_.size(); ++i) {
    for (const at::Tensor& state : windows_[i].states) prefetch(state);
    windows_[i].arrived = make_event(device_.type(), /*timing=*/false);
    windows_[i].arrived->record(current_stream_of(device_));
  }
}

}  // namespace octavo
