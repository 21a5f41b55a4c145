// SPDX-License-Identifier: Apache-2.0
#include "octavo/rules/count_sketch.h"

#include "octavo/kernels/sycl/launch.h"
#include "octavo/kernels/sycl/table.h"

namespace octavo::sycl_backend {

void insert_sketch(Queue queue, const EncodeInput& in, std::uint64_t count, const rules::CountSketch& shape,
                   rules::SketchBlocks part, float* sketch) {
  // Each group of items looks at the places of all elements, so the work is linear only because the number of groups is
  // fixed.
  constexpr std::uint64_t kGroups = 256;
  const std::uint64_t blocks_of_group = sycl_span::divide_up(part.count, kGroups);
  const std::uint64_t groups = blocks_of_group == 0 ? 0 : sycl_span::divide_up(part.count, blocks_of_group);
  launch_groups(queue, {"count_sketch", "insert_sketch"}, groups, in, count, shape, part, blocks_of_group, sketch);
}

void estimate_sketch(Queue queue, const float* sketch, const rules::CountSketch& shape, std::uint64_t first,
                     std::uint64_t count, float* estimates) {
  // The spans begin where a group of elements does.
  const std::uint64_t begin = first % rules::kSketchGroup, elements = count == 0 ? 0 : begin + count;
  launch_spans(queue, {"count_sketch", "estimate_" + std::to_string(shape.rows)}, elements, sketch, shape, first, count,
               estimates);
}

}  // namespace octavo::sycl_backend
