// SPDX-License-Identifier: Apache-2.0
#include "octavo/rules/count_sketch.h"

#include "octavo/kernels/reference/table.h"

namespace octavo::reference {

namespace {

constexpr std::uint64_t kGroup = rules::kSketchGroup;

/// Returns the column of an element, by its number.
std::uint64_t column_of(const rules::SketchRow& row, std::uint64_t element) {
  return row.place(element / kGroup) ^ element % kGroup;
}

float signed_value(const rules::SketchRow& row, std::uint64_t element, float value) {
  return rules::signed_in_sketch(value, row.signs(element / kGroup), element % kGroup);
}

template <std::uint64_t kRows>
float estimate(const float* sketch, const rules::CountSketch& shape, std::uint64_t element) {
  float cells[kRows];
  for (std::uint64_t r = 0; r < kRows; ++r) {
    const rules::SketchRow row = shape.row(r);
    cells[r] = signed_value(row, element, sketch[r * shape.columns + column_of(row, element)]);
  }
  return rules::sketch_estimate(cells);
}

}  // namespace

void insert_sketch(Queue, const EncodeInput& in, std::uint64_t count, const rules::CountSketch& shape,
                   rules::SketchBlocks part, float* sketch) {
  for (std::uint64_t r = 0; r < shape.rows; ++r) {
    const rules::SketchRow row = shape.row(r);
    const rules::SketchColumns mine = shape.columns_of(part, r);
    for (std::uint64_t i = 0; i < count; ++i) {
      const std::uint64_t element = in.first + i, column = column_of(row, element);
      if (column < mine.begin || column >= mine.end) continue;
      float& cell = sketch[r * shape.columns + column];
      cell = rules::sketch_cell(cell + signed_value(row, element, value_at(in, i)));
    }
  }
}

void estimate_sketch(Queue, const float* sketch, const rules::CountSketch& shape, std::uint64_t first,
                     std::uint64_t count, float* estimates) {
  for (std::uint64_t i = 0; i < count; ++i) {
    estimates[i] = shape.rows == 1   ? estimate<1>(sketch, shape, first + i)
                   : shape.rows == 3 ? estimate<3>(sketch, shape, first + i)
                                     : estimate<5>(sketch, shape, first + i);
  }
}

}  // namespace octavo::reference
