// SPDX-License-Identifier: Apache-2.0
#include "octavo/rules/count_sketch.h"

#include "octavo/kernels/cpu/values.h"

namespace octavo::cpu::OCTAVO_ISA {

namespace {

static_assert(kGroup == rules::kSketchGroup);

constexpr std::uint64_t kCacheLine = kCacheLineBytes / sizeof(float);

/// The place of a group in a row: the first column of its block, the number by which its elements are exchanged in the
/// block (element j is at j ^ exchange), and their signs.
struct Placed {
  std::uint64_t block, exchange, signs;

  OCTAVO_INLINE Placed(const rules::SketchRow& row, std::uint64_t group, std::uint64_t place)
      : block(place - place % kGroup), exchange(place % kGroup), signs(row.signs(group)) {}

  /// Adds the values with their signs to the cells of the block.
  OCTAVO_INLINE void add(const float* values, float* cells) const {
    for (std::uint64_t k = 0; k < kGroup; k += kVectorFloats) {
      const FloatVector vector = negate_lanes(load_vector(values + k), signs >> k);
      float* const to = cells + (k ^ of_vectors());
      store_vector(load_vector(to) + exchange_lanes(vector, of_lanes()), to);
    }
  }
  /// Sets values[j] to the cell of element j with its sign.
  OCTAVO_INLINE void read(const float* cells, float* values) const {
    for (std::uint64_t k = 0; k < kGroup; k += kVectorFloats) {
      const FloatVector vector = exchange_lanes(load_vector(cells + (k ^ of_vectors())), of_lanes());
      store_vector(negate_lanes(vector, signs >> k), values + k);
    }
  }

 private:
  std::uint32_t of_lanes() const { return static_cast<std::uint32_t>(exchange % kVectorFloats); }
  std::uint64_t of_vectors() const { return exchange - exchange % kVectorFloats; }
};

/// The places of consecutive groups in a row. They are found together, so that hashes are computed in vectors.
class Places {
 public:
  static constexpr std::uint64_t kCount = 64;

  OCTAVO_INLINE void find(const rules::SketchRow& row, std::uint64_t first_group) {
    for (std::uint64_t i = 0; i < kCount; ++i) places_[i] = static_cast<std::uint32_t>(row.place(first_group + i));
  }
  std::uint64_t operator[](std::uint64_t i) const { return places_[i]; }

  /// Returns a mask: bit i is 1 where place number i is among the columns.
  OCTAVO_INLINE std::uint64_t among(rules::SketchColumns columns) const {
    const auto begin = static_cast<std::uint32_t>(columns.begin);
    const auto size = static_cast<std::uint32_t>(columns.end - columns.begin);
    std::uint32_t flags[kCount];
    for (std::uint64_t i = 0; i < kCount; ++i) flags[i] = places_[i] - begin < size ? rules::kSignMask : 0;
    return sign_mask(flags);
  }

 private:
  std::uint32_t places_[kCount];
};

/// The number of groups by which a group is prefetched ahead: no hardware foresees a place.
constexpr std::uint64_t kAhead = 8;

OCTAVO_INLINE void prefetch_group(const float* group) {
  for (std::uint64_t j = 0; j < kGroup; j += kCacheLine) __builtin_prefetch(group + j);
}

/// The elements of a group that have numbers in [first, first + count).
struct GroupPart {
  std::uint64_t first, count;

  OCTAVO_INLINE static GroupPart of(std::uint64_t group, std::uint64_t first, std::uint64_t count) {
    const std::uint64_t begin = group * kGroup < first ? first : group * kGroup;
    return {begin, smaller(group * kGroup + kGroup, first + count) - begin};
  }
};

/// Adds a group, or what the input has of it, to its block.
OCTAVO_INLINE void add_group(const EncodeInput& in, GroupPart part, const Placed& placed, float* block) {
  const std::uint64_t i = part.first - in.first;
  if (part.count < kGroup) {
    for (std::uint64_t k = 0, j = part.first % kGroup; k < part.count; ++k, ++j) {
      block[j ^ placed.exchange] += rules::signed_in_sketch(value_at(in, i + k), placed.signs, j);
    }
    return;
  }
  float values[kGroup];
  if (in.momentum || in.others || in.residual) {
    work_out(in, i, kGroup, values);
  } else {
    for (std::uint64_t j = 0; j < kGroup; ++j) {
      values[j] = rules::contribution(in.gradient_weight, in.gradient[i + j]);
    }
  }
  placed.add(values, block);
}

/// Adds those of up to Places::kCount groups that are among the columns. `cells`: the cells of the row.
OCTAVO_INLINE void add_groups(const EncodeInput& in, std::uint64_t count, const rules::SketchRow& row,
                              rules::SketchColumns columns, std::uint64_t group, std::uint64_t groups, float* cells) {
  Places places;
  places.find(row, group);
  std::uint64_t mask = places.among(columns), found = 0;
  if (groups < Places::kCount) mask &= (std::uint64_t{1} << groups) - 1;
  std::uint8_t order[Places::kCount];
  for (; mask != 0; mask &= mask - 1) order[found++] = static_cast<std::uint8_t>(__builtin_ctzll(mask));
  for (std::uint64_t k = 0; k < found; ++k) {
    const std::uint64_t i = order[k], ahead = order[smaller(k + kAhead, found - 1)];
    prefetch_group(cells + places[ahead] / kGroup * kGroup);
    prefetch_group(in.gradient + static_cast<std::int64_t>((group + ahead) * kGroup - in.first));
    const Placed placed(row, group + i, places[i]);
    add_group(in, GroupPart::of(group + i, in.first, count), placed, cells + placed.block);
  }
}

/// Writes the estimates of a group's elements.
template <std::uint64_t kRows>
OCTAVO_INLINE void estimate_group(const float (&cells)[kRows][kGroup], float* estimates) {
  for (std::uint64_t j = 0; j < kGroup; ++j) {
    float of_element[kRows];
    for (std::uint64_t r = 0; r < kRows; ++r) of_element[r] = cells[r][j];
    estimates[j] = rules::sketch_estimate(of_element);
  }
}

template <std::uint64_t kRows>
void estimate(const float* sketch, const rules::CountSketch& shape, std::uint64_t first, std::uint64_t count,
              float* estimates) {
  const Store how = choose_store(count);
  const std::uint64_t end = (first + count + kGroup - 1) / kGroup;
  rules::SketchRow rows[kRows];
  for (std::uint64_t r = 0; r < kRows; ++r) rows[r] = shape.row(r);
  for (std::uint64_t stretch = first / kGroup; stretch < end; stretch += Places::kCount) {
    Places places[kRows];
    for (std::uint64_t r = 0; r < kRows; ++r) places[r].find(rows[r], stretch);
    for (std::uint64_t i = 0; i < smaller(Places::kCount, end - stretch); ++i) {
      const std::uint64_t group = stretch + i, ahead = smaller(i + kAhead, Places::kCount - 1);
      float cells[kRows][kGroup], estimated[kGroup];
      for (std::uint64_t r = 0; r < kRows; ++r) {
        const float* const of_row = sketch + r * shape.columns;
        prefetch_group(of_row + places[r][ahead] / kGroup * kGroup);
        const Placed placed(rows[r], group, places[r][i]);
        placed.read(of_row + placed.block, cells[r]);
      }
      estimate_group(cells, estimated);
      const GroupPart part = GroupPart::of(group, first, count);
      store_part(how, estimated + part.first % kGroup, part.count, estimates + (part.first - first));
    }
  }
  end_stream();
}

}  // namespace

void insert_sketch(Queue, const EncodeInput& in, std::uint64_t count, const rules::CountSketch& shape,
                   rules::SketchBlocks part, float* sketch) {
  constexpr std::uint64_t kStretch = 4 * Places::kCount;  // groups that all rows read while they are in the caches
  const std::uint64_t end = (in.first + count + kGroup - 1) / kGroup;
  for (std::uint64_t stretch = in.first / kGroup; stretch < end; stretch += kStretch) {
    const std::uint64_t stretch_end = smaller(end, stretch + kStretch);
    for (std::uint64_t r = 0; r < shape.rows; ++r) {
      const rules::SketchColumns columns = shape.columns_of(part, r);
      if (columns.begin == columns.end) continue;
      const rules::SketchRow row = shape.row(r);
      for (std::uint64_t group = stretch; group < stretch_end; group += Places::kCount) {
        const std::uint64_t groups = smaller(Places::kCount, stretch_end - group);
        add_groups(in, count, row, columns, group, groups, sketch + r * shape.columns);
      }
    }
  }
  // A sum that was once not finite is still not finite now.
  float* const cells = sketch + part.first * kGroup;
  for (std::uint64_t i = 0; i < part.count * kGroup; ++i) cells[i] = rules::sketch_cell(cells[i]);
}

void estimate_sketch(Queue, const float* sketch, const rules::CountSketch& shape, std::uint64_t first,
                     std::uint64_t count, float* estimates) {
  if (shape.rows == 1) return estimate<1>(sketch, shape, first, count, estimates);
  if (shape.rows == 3) return estimate<3>(sketch, shape, first, count, estimates);
  estimate<5>(sketch, shape, first, count, estimates);
}

}  // namespace octavo::cpu::OCTAVO_ISA
