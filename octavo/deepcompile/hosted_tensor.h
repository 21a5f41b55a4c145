// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>

#include "octavo/device/side_streams.h"
#include "octavo/device/stream_event.h"
#include "octavo/export.h"

namespace octavo::dc {

/// A device's tensor whose values can wait on the host. It stays the same tensor, as do its views: while its values are
/// away its memory has no bytes, and who reads it gets an error. Not thread-safe.
///
/// Moving is asynchronous, on streams beside the device's current one. What is on the CPU, or is a part of larger
/// memory, stays where it is.
class OCTAVO_API HostedTensor {
 public:
  explicit HostedTensor(at::Tensor values);

  const at::Tensor& values() const { return values_; }
  bool isAway() const { return is_away_; }
  /// Of the device, that offload() gives up; 0 for what stays.
  std::int64_t bytes() const { return moves_ ? values_.nbytes() : 0; }
  /// Another number after each change of the values that torch knows of; the same after they were moved.
  std::int64_t version() const;

  /// Copies the values to page-locked memory, unless it has them, when the device's current stream is done with what it
  /// has, and gives up those of the device. Nothing where they are away.
  void offload(SideStreams& streams);
  /// The way back, after an offload that is under way. Throws c10::OutOfMemoryError, and nothing has changed.
  void reload(SideStreams& streams);
  /// What the device's current stream gets from now on waits for values that are on their way back.
  void waitReload() const;
  /// The thread waits until the values are on the host, and the device's memory can be used again.
  void waitOffload() const;
  /// The values while they are away, for which the thread waits. May be written.
  const at::Tensor& onHost() const;
  /// The values may change now in ways that torch does not count: the next offload copies them.
  void touch() { has_copy_ = false; }

 private:
  at::Tensor bytes_of(const at::Tensor& tensor) const;

  at::Tensor values_;
  at::Tensor on_host_;  // kept for the next time; counts changes that were made there
  bool moves_, is_away_ = false;
  bool has_copy_ = false;  // on_host_ has the values
  std::int64_t copied_version_ = 0;
  std::shared_ptr<StreamEvent> offloaded_, reloaded_;
};

}  // namespace octavo::dc
