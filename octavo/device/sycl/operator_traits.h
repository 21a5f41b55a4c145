// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <cstddef>
#include <optional>
#include <vector>

namespace octavo::sycl_device {

/// What is known of an operator from its schema.
struct OperatorTraits {
  explicit OperatorTraits(const c10::OperatorHandle& op, bool is_sparse = false);

  std::size_t arguments;
  std::vector<std::size_t> written;      // positions
  std::optional<std::size_t> generator;  // none there means the default one
  bool is_mixed;                         // takes indices on the CPU beside tensors of the device
  bool is_sparse;                        // a tensor may be
  bool is_collective;                    // of c10d: its work goes on when the call has returned
};

}  // namespace octavo::sycl_device
