// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/Stream.h>
#include <c10/core/StreamGuard.h>

#include <memory>
#include <optional>
#include <unordered_map>

#include "octavo/device/stream_event.h"
#include "octavo/export.h"

namespace octavo {

/// The streams of a thread that works on tensors beside the thread that makes them: one for each device, none on the
/// CPU. Only one thread calls hand_over(); it need not be the thread that uses the streams.
class OCTAVO_API SideStreams {
 public:
  /// A point in the current stream's work from which the other thread goes on.
  class Mark {
   public:
    /// Makes the thread's own stream of the device the current one until the guard ends. Its work waits for the mark.
    c10::OptionalStreamGuard take() const;

   private:
    friend class SideStreams;
    std::optional<c10::Stream> stream_;
    std::shared_ptr<StreamEvent> event_;
  };
  Mark hand_over(c10::Device device);

 private:
  std::unordered_map<c10::Device, c10::Stream> streams_;
};

}  // namespace octavo
