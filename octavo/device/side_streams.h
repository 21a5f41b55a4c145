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

/// The streams of a thread that works on tensors beside the one that makes them: one for each device, none on the CPU.
/// hand_over() is called by one thread, which may be another one than that.
class OCTAVO_API SideStreams {
 public:
  /// A point in the current stream's work, for the other thread to go on from.
  class Mark {
   public:
    /// Makes the other stream of the device the current one until the guard ends; its work waits for the mark.
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
