// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sycl/sycl.hpp>

#include <cstdint>

#include "octavo/kernels/sycl/devices.h"
#include "octavo/kernels/sycl/program.h"

namespace octavo::sycl_backend {

/// Enqueues `groups` groups of `size` items of a kernel, after all that the stream was given before. Without a stream the
/// memory is ordinary, and the call returns when the kernel has run.
template <class... Arguments>
void launch(Stream stream, const char* name, std::uint64_t groups, std::uint64_t size, Arguments... arguments) {
  if (groups == 0) return;
  guarded(name, [&] {
    sycl::queue& queue = stream ? queue_of(stream) : host_queue();
    const sycl::kernel code = kernel(queue, name);
    sycl::event done = queue.submit([&](sycl::handler& handler) {
      handler.set_args(arguments...);
      handler.parallel_for(sycl::nd_range<1>(groups * size, size), code);
    });
    if (stream == nullptr) done.wait_and_throw();
  });
}

constexpr std::uint64_t divide_up(std::uint64_t count, std::uint64_t by) { return count / by + (count % by != 0); }

}  // namespace octavo::sycl_backend
