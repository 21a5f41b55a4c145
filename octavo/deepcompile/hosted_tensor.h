// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>

#include "octavo/device/side_streams.h"
#include "octavo/device/stream_event.h"
#include "octavo/export.h"

namespace octavo::dc {

/// A device's tensor whose values can wait on the host. It stays the same tensor, as do its views. While its values are
/// away its memory has no bytes, and whoever reads it gets an error. Not thread-safe.
///
/// Moving is asynchronous, on streams beside the device's current one. A tensor on the CPU, or one that is a part of
/// larger memory, stays where it is.
class OCTAVO_API HostedTensor {
 public:
  explicit HostedTensor(at::Tensor values);

  const at::Tensor& values() const { return values_; }
  bool is_away() const { return is_away_; }
  /// The bytes of the device's memory that offload() gives up; 0 for a tensor that stays.
  std::int64_t bytes() const { return moves_ ? values_.nbytes() : 0; }
  /// A number that differs after each change of the values that torch knows of, and stays the same when they are moved.
  std::int64_t version() const;

  /// Copies the values to page-locked memory, unless it has them, once the device's current stream has done the work
  /// that it has. Then gives up the device's memory. Does nothing where the values are away.
  void offload(SideStreams& streams);
  /// Moves the values back, after an offload that is under way. Where it throws c10::OutOfMemoryError nothing has
  /// changed.
  void reload(SideStreams& streams);
  /// Makes what the device's current stream gets from now on wait for values that are on their way back.
  void wait_for_reload() const;
  /// Waits, on the calling thread, until the values are on the host and the device's memory can be used again.
  void wait_for_offload() const;
  /// Waits, on the calling thread, for the values while they are away, and returns them. They may be written.
  const at::Tensor& on_host() const;
  /// Must be called where the values may change in ways that torch does not count: the next offload copies them.
  void touch() { has_copy_ = false; }

 private:
  at::Tensor as_bytes(const at::Tensor& tensor) const;

  at::Tensor values_;
  at::Tensor on_host_;                  // kept for the next time; counts changes that were made there
  std::int64_t changes_when_made_ = 0;  // torch's count for on_host_ before there was any change
  bool moves_, is_away_ = false;
  bool has_copy_ = false;  // on_host_ has the values
  std::int64_t copied_version_ = 0;
  std::shared_ptr<StreamEvent> offloaded_, reloaded_;
};

}  // namespace octavo::dc
