// SPDX-License-Identifier: Apache-2.0
#include "octavo/rules/top_k.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "octavo/kernels/reference/table.h"

namespace octavo::reference {

namespace {

/// Returns the indices of a tile's largest values, in ascending order.
std::vector<std::uint64_t> largest(const EncodeInput& in, const rules::TopTile& tile) {
  std::vector<std::uint64_t> order(tile.size);
  std::iota(order.begin(), order.end(), std::uint64_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::uint64_t a, std::uint64_t b) {
    return rules::magnitude_bits(value_at(in, tile.first + a)) > rules::magnitude_bits(value_at(in, tile.first + b));
  });
  order.resize(tile.kept);
  std::sort(order.begin(), order.end());
  return order;
}

template <class Visit>
void for_each_tile(const rules::TopK& shape, std::uint64_t count, Visit visit) {
  for (std::uint64_t number = 0; number < shape.tiles(count); ++number) {
    const auto tile = rules::TopTile::of(shape, number, count);
    visit(tile, rules::IndexWords::of(tile.size, tile.kept));
  }
}

}  // namespace

void select_top(Queue, const EncodeInput& in, std::uint64_t count, const rules::TopK& shape, float*, float* values,
                std::uint32_t* indices, rules::Residual* next) {
  for_each_tile(shape, count, [&](const rules::TopTile& tile, const rules::IndexWords& layout) {
    std::uint32_t* const words = indices + tile.first_word;
    std::fill_n(words, layout.words, 0U);
    const auto kept = largest(in, tile);
    for (std::uint64_t j = 0; j < kept.size(); ++j) {
      values[tile.first_kept + j] = value_at(in, tile.first + kept[j]);
      layout.put(j, kept[j], [&](std::uint64_t word, std::uint32_t bits) { words[word] |= bits; });
    }
  });
  for (std::uint64_t i = 0; next && i < count; ++i) {
    const float value = value_at(in, i);
    next[i] = residual_at(in, i, rules::left_over_of(value, 0.0F));
  }
}

void settle_top(Queue, const EncodeInput& in, std::uint64_t count, const rules::TopK& shape, const float* values,
                const float* sent, const std::uint32_t* indices, rules::Residual* next) {
  for_each_tile(shape, count, [&](const rules::TopTile& tile, const rules::IndexWords& layout) {
    const auto word_at = [&](std::uint64_t word) { return indices[tile.first_word + word]; };
    layout.for_each(word_at, [&](std::uint64_t j, std::uint64_t index) {
      const std::uint64_t k = tile.first_kept + j, i = tile.first + index;
      next[i] = residual_at(in, i, rules::left_over_of(values[k], sent[k]));
    });
  });
}

void gather_top(Queue, const EncodeInput& in, const std::uint32_t* indices, std::uint64_t count,
                const rules::TopK& shape, float* values, rules::Residual* next) {
  for (std::uint64_t i = 0; next && i < count; ++i) {
    next[i] = residual_at(in, i, rules::left_over_of(value_at(in, i), 0.0F));
  }
  for_each_tile(shape, count, [&](const rules::TopTile& tile, const rules::IndexWords& layout) {
    const auto word_at = [&](std::uint64_t word) { return indices[tile.first_word + word]; };
    layout.for_each(word_at, [&](std::uint64_t j, std::uint64_t index) {
      const std::uint64_t i = tile.first + index;
      values[tile.first_kept + j] = value_at(in, i);
      if (next) next[i] = residual_at(in, i, 0.0F);
    });
  });
}

void scatter_top(Queue, const float* sent, const std::uint32_t* indices, std::uint64_t count, const rules::TopK& shape,
                 Store how, float* out, std::uint32_t* nonfinite) {
  if (how != Store::add) std::fill_n(out, count, 0.0F);
  for_each_tile(shape, count, [&](const rules::TopTile& tile, const rules::IndexWords& layout) {
    const auto word_at = [&](std::uint64_t word) { return indices[tile.first_word + word]; };
    layout.for_each(word_at, [&](std::uint64_t j, std::uint64_t index) {
      const float value = sent[tile.first_kept + j];
      report(rules::is_finite(value), nonfinite);
      store(how, value, out[tile.first + index]);
    });
  });
}

}  // namespace octavo::reference
