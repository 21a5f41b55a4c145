// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/DeviceType.h>
#include <c10/core/Stream.h>

#include <memory>

#include "octavo/export.h"

namespace octavo {

/// Returns the stream of the device that torch submits to now.
OCTAVO_API c10::Stream current_stream_of(c10::Device device);

/// A point in a stream's work. It exists also on the CPU, where torch has none. Not thread-safe, like torch's own.
class OCTAVO_API StreamEvent {
 public:
  virtual ~StreamEvent() = default;
  /// Marks the work submitted to the stream so far; a later call moves the mark.
  virtual void record(c10::Stream stream) = 0;
  /// Makes work that is submitted to the stream from now on wait for the mark.
  virtual void block(c10::Stream stream) const = 0;
  /// Whether the mark has been reached; true where none was set.
  virtual bool query() const = 0;
  /// Blocks the calling thread until the mark has been reached; returns at once where none was set. Throws what the
  /// device's earlier work has thrown.
  virtual void synchronize() const = 0;
  /// Milliseconds from this mark to `later`'s. Throws Error invalid_argument unless both were recorded and made with
  /// timing, on the same device type.
  virtual double elapsed_ms(const StreamEvent& later) const = 0;
};

/// Makes an event of the device type. On the CPU it is a time of the host's steady clock: operations there are finished
/// when they return, so its mark has always been reached.
OCTAVO_API std::unique_ptr<StreamEvent> make_event(c10::DeviceType type, bool timing);

/// Waits for all work of the device; does nothing on the CPU.
void synchronize(c10::Device device);

/// Copies between a device and the host on the device's current stream, behind the work that this has. Returns the mark
/// of the copy's end. `of_device` is the one of the two that is on the device; its memory is not used again before the
/// mark.
std::shared_ptr<StreamEvent> copy_on_stream(const at::Tensor& to, const at::Tensor& from, const at::Tensor& of_device);

}  // namespace octavo
