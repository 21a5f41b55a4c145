// SPDX-License-Identifier: Apache-2.0
#include "octavo/device/side_streams.h"

#include <c10/core/impl/VirtualGuardImpl.h>

namespace octavo {

SideStreams::Mark SideStreams::hand_over(c10::Device device) {
  Mark mark;
  if (device.is_cpu()) return mark;
  const c10::impl::VirtualGuardImpl guard(device.type());
  auto found = streams_.find(device);
  if (found == streams_.end()) found = streams_.emplace(device, guard.getStreamFromGlobalPool(device)).first;
  mark.stream_ = found->second;
  mark.event_ = make_event(device.type(), /*timing=*/false);
  mark.event_->record(guard.getStream(device));
  return mark;
}

c10::OptionalStreamGuard SideStreams::Mark::take() const {
  if (stream_) event_->block(*stream_);
  return c10::OptionalStreamGuard(stream_);
}

}  // namespace octavo
