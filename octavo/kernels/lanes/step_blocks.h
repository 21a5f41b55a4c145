// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <type_traits>

#include "octavo/kernels/lanes/lanes.h"
#include "octavo/kernels/step_operands.h"

/// The loop of an optimizer's step. A group takes the blocks of a span, and each of its lanes takes every kLanes-th
/// element of a block, which it keeps in registers. Formats are known when a program is compiled, as
/// OCTAVO_PARAMETER_FORMAT, OCTAVO_GRADIENT_FORMAT and OCTAVO_STATE_FORMAT.
#define OCTAVO_STEP_PARAMETERS                                                                                   \
  std::uint64_t count, void *parameter, std::int8_t *tail, const void *gradient, void *mean, float *mean_scales, \
      void *square, float *square_scales, const float *gradient_factor, std::uint32_t *nonfinite,                \
      std::uint32_t rounds_at_random, std::uint64_t rounding_key, std::uint64_t first
#define OCTAVO_STEP                                                                                                  \
  octavo::StepOperands {                                                                                             \
    .parameter = parameter, .parameter_format = octavo::FloatFormat{OCTAVO_PARAMETER_FORMAT}, .tail = tail,          \
    .gradient = gradient, .gradient_format = octavo::FloatFormat{OCTAVO_GRADIENT_FORMAT},                            \
    .mean = {mean, mean_scales, octavo::StateFormat{OCTAVO_STATE_FORMAT}},                                           \
    .square = {square, square_scales, octavo::StateFormat{OCTAVO_STATE_FORMAT}}, .gradient_factor = gradient_factor, \
    .nonfinite = nonfinite, .rounds_at_random = rounds_at_random != 0, .rounding_key = rounding_key, .first = first  \
  }

namespace octavo::lanes {

/// The lane's elements of a block of a state. All lanes of a group call each of these functions together.
template <class Map8, class Map4>
class LaneStateBlock {
 public:
  static constexpr std::uint64_t kOwn = kStepBlock / kLanes;

  LaneStateBlock(const StateView& state, std::uint64_t count) : state_(state), count_(count) {
    for (std::uint64_t k = 0; k < kOwn; ++k) values_[k] = is_inside(k) ? loaded(k) : 0.0F;
  }
  float& operator[](std::uint64_t k) { return values_[k]; }

  void store() {
    if constexpr (kFormat == StateFormat::float32) {
      for (std::uint64_t k = 0; k < kOwn; ++k) {
        if (is_inside(k)) static_cast<float*>(state_.values)[element(k)] = values_[k];
      }
    } else {
      constexpr std::uint64_t kOwnOfBlock = Map::kBlock / kLanes;
      for (std::uint64_t k = 0; k < kOwn && element_of_first_lane(k) < count_; k += kOwnOfBlock) {
        encode(k, k + kOwnOfBlock);
      }
    }
  }

 private:
  static constexpr StateFormat kFormat{OCTAVO_STATE_FORMAT};
  using Map = std::conditional_t<kFormat == StateFormat::bits4, Map4, Map8>;

  static std::uint64_t element_of_first_lane(std::uint64_t k) { return k * kLanes; }
  static std::uint64_t element(std::uint64_t k) { return k * kLanes + lane(); }
  bool is_inside(std::uint64_t k) const { return element(k) < count_; }
  std::uint8_t* codes() const { return static_cast<std::uint8_t*>(state_.values); }

  float loaded(std::uint64_t k) const {
    const std::uint64_t i = element(k);
    if constexpr (kFormat == StateFormat::float32) return static_cast<const float*>(state_.values)[i];
    const std::uint32_t code = Map::kBits == 8 ? codes()[i] : codes()[i / 2] >> (i % 2 == 0 ? 4 : 0) & 15;
    return Map::decoded(code, state_.scales[element_of_first_lane(k) / Map::kBlock]);
  }

  /// Encodes the block of codes that is made of the lanes' elements [from, to).
  void encode(std::uint64_t from, std::uint64_t to) {
    float greatest = 0, least = 0;
    for (std::uint64_t k = from; k < to; ++k) {
      const float value = is_inside(k) ? values_[k] : 0.0F;
      greatest = value > greatest ? value : greatest;
      least = value < least ? value : least;
    }
    const float extreme = rules::extreme_of(largest_of_lanes(greatest), -smallest_of_lanes(least));
    const rules::StateScale scale = rules::state_scale(extreme);
    state_.scales[element_of_first_lane(from) / Map::kBlock] = scale.kept;
    for (std::uint64_t k = from; k < to; ++k) {
      const std::uint32_t code = is_inside(k) ? Map::code(values_[k], scale) : 0;
      if constexpr (Map::kBits == 8) {
        if (is_inside(k)) codes()[element(k)] = static_cast<std::uint8_t>(code);
      } else {
        const std::uint32_t next = of_next_lane(code);
        if (is_inside(k) && lane() % 2 == 0) codes()[element(k) / 2] = static_cast<std::uint8_t>(code << 4 | next);
      }
    }
  }

  StateView state_;
  std::uint64_t count_;
  float values_[kOwn];
};

using MomentumBlock = LaneStateBlock<rules::Momentum8, rules::Momentum4>;
using VarianceBlock = LaneStateBlock<rules::Variance8, rules::Variance4>;

/// Calls step(block, size) for this group's blocks.
template <class Step>
inline void for_step_blocks(const StepOperands& operands, std::uint64_t count, Step step) {
  const std::uint64_t begin = group_index() * kSpan, end = std::min(begin + kSpan, count);
  for (std::uint64_t i = begin; i < end; i += kStepBlock) step(operands.from(i), std::min(kStepBlock, end - i));
}

/// Calls update(gradient, parameter, k), which returns whether the rule took the gradient, for a lane's elements of
/// a block.
template <class Update>
inline void update_elements(const StepOperands& block, std::uint64_t count, Update update) {
  for (std::uint64_t k = 0; k < kStepBlock / kLanes; ++k) {
    const std::uint64_t i = k * kLanes + lane();
    if (i >= count) continue;
    float parameter = parameter_at(block, i);
    const bool taken = update(gradient_at(block, i), parameter, k);
    if (!taken && block.nonfinite) *block.nonfinite = 1;
    store_parameter(block, i, parameter);
  }
}

}  // namespace octavo::lanes
