// SPDX-License-Identifier: Apache-2.0
#include "octavo/rules/residual.h"

#include "octavo/kernels/sycl/launch.h"
#include "octavo/kernels/sycl/table.h"

namespace octavo::sycl_backend {

void decay_residual(Queue queue, const rules::Residual* residual, float decay, std::uint64_t key, std::uint64_t first,
                    std::uint64_t count, Store store, rules::Residual* decayed) {
  launch_spans(queue, {"residual", "decay_residual"}, count, residual, decay, key, first, count, store, decayed);
}

}  // namespace octavo::sycl_backend
