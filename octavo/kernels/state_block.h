// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>

#include "octavo/kernels/step_operands.h"
#include "octavo/rules/state_codes.h"

namespace octavo {

/// The values of a step's block of a state, as floats while the step is made. Codes are made one block of codes at a
/// time.
template <class Map8, class Map4>
class StateBlock {
 public:
  StateBlock(const StateView& state, std::uint64_t count) : state_(state), count_(count) {
    if (state.format == StateFormat::float32) {
      std::copy_n(static_cast<const float*>(state.values), count, values_);
    } else if (state.format == StateFormat::bits8) {
      decode<Map8>();
    } else {
      decode<Map4>();
    }
  }
  float& operator[](std::uint64_t i) { return values_[i]; }
  void store() {
    if (state_.format == StateFormat::float32) {
      std::copy_n(values_, count_, static_cast<float*>(state_.values));
    } else if (state_.format == StateFormat::bits8) {
      encode<Map8>();
    } else {
      encode<Map4>();
    }
  }

 private:
  std::uint8_t* codes() const { return static_cast<std::uint8_t*>(state_.values); }

  template <class Map>
  void decode() {
    for (std::uint64_t i = 0; i < count_; ++i) {
      const std::uint32_t code = Map::kBits == 8 ? codes()[i] : codes()[i / 2] >> (i % 2 == 0 ? 4 : 0) & 15;
      values_[i] = Map::decoded(code, state_.scales[i / Map::kBlock]);
    }
  }
  template <class Map>
  void encode() {
    for (std::uint64_t first = 0; first < count_; first += Map::kBlock) {
      encode_block<Map>(first, std::min(Map::kBlock, count_ - first));
    }
  }
  template <class Map>
  void encode_block(std::uint64_t first, std::uint64_t count) {
    float greatest = 0, greatest_negative = 0;
    for (std::uint64_t i = first; i < first + count; ++i) {
      greatest = std::max(greatest, values_[i]);
      greatest_negative = std::max(greatest_negative, -values_[i]);
    }
    const rules::StateScale scale = rules::state_scale(rules::extreme_of(greatest, greatest_negative));
    state_.scales[first / Map::kBlock] = scale.kept;
    for (std::uint64_t i = first; i < first + count; ++i) {
      const std::uint32_t code = Map::code(values_[i], scale);
      if (Map::kBits == 8) {
        codes()[i] = static_cast<std::uint8_t>(code);
      } else {
        codes()[i / 2] = static_cast<std::uint8_t>(i % 2 == 0 ? code << 4 : codes()[i / 2] | code);
      }
    }
  }

  StateView state_;
  std::uint64_t count_;
  float values_[kStepBlock];
};

using MomentumBlock = StateBlock<rules::Momentum8, rules::Momentum4>;
using VarianceBlock = StateBlock<rules::Variance8, rules::Variance4>;

}  // namespace octavo
