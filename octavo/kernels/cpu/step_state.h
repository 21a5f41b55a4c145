// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "octavo/kernels/cpu/state_codes.h"
#include "octavo/kernels/cpu/step_blocks.h"

/// The states of an optimizer's step, a block at a time.
namespace octavo::cpu::OCTAVO_ISA {

/// In place of a map: a state in float32.
struct PlainState {
  static constexpr unsigned kBits = 32;
  static constexpr std::uint64_t kBlock = kStepBlock;
  static constexpr bool kSigned = true;
};

/// Calls visit(map of momenta, map of variances) with those of a format, which both have.
template <class Visit>
OCTAVO_INLINE void with_state_maps(StateFormat format, Visit visit) {
  switch (format) {
    case StateFormat::float32: return visit(PlainState{}, PlainState{});
    case StateFormat::bits8: return visit(rules::Momentum8{}, rules::Variance8{});
    case StateFormat::bits4: return visit(rules::Momentum4{}, rules::Variance4{});
  }
}

/// A block of a state: begin(); before() and store() for all of its elements; work_out_scales(); after() and encode()
/// for all of them; end(). Codes become floats just before these are updated. What follows the elements of a tensor's
/// last block, up to a whole block, is of no meaning.
template <class Map>
class StateBlock {
 public:
  static constexpr bool kHasCodes = Map::kBits < 32;

  OCTAVO_INLINE void begin(const StateView& state, std::uint64_t first, std::uint64_t count) {
    const bool is_whole = count == kStepBlock;
    count_ = count;
    memory_ = static_cast<std::uint8_t*>(state.values) + first * Map::kBits / 8;
    if constexpr (kHasCodes) {
      begin_again();
      scales_ = state.scales + first / Map::kBlock;
      codes_ = Map::kBits == 8 && is_whole ? memory_ : unpacked_;
      if (codes_ == memory_) return;
      unpack_codes<Map>(memory_, count, unpacked_);
      std::memset(unpacked_ + count, 0, kStepBlock - count);
    } else {
      values_ = is_whole ? reinterpret_cast<float*>(memory_) : buffer_;
      if (is_whole) return;
      std::memcpy(buffer_, memory_, count * sizeof(float));
      std::memset(buffer_ + count, 0, (kStepBlock - count) * sizeof(float));
    }
  }

  /// As they were before the step.
  OCTAVO_INLINE Floats before(std::uint64_t first) const {
    if constexpr (kHasCodes) {
      return StateDecoder<Map>(scales_[first / Map::kBlock])(load_ints(codes_ + first));
    } else {
      return load_floats(values_ + first);
    }
  }

  OCTAVO_INLINE void store(std::uint64_t first, const Floats& values) {
    store_floats(values, values_ + first);
    if constexpr (kHasCodes) extremes_[first / Map::kBlock].take(values);
  }
  OCTAVO_INLINE Floats after(std::uint64_t first) const { return load_floats(values_ + first); }

  /// Whether all that was stored is.
  OCTAVO_INLINE bool is_finite() const {
    bool finite = true;
    for (const auto& extremes : extremes_) finite &= extremes.are_finite();
    return finite;
  }
  /// All values are stored once more.
  OCTAVO_INLINE void begin_again() {
    for (auto& extremes : extremes_) extremes = {};
  }

  /// After all values of the block are stored.
  OCTAVO_INLINE void work_out_scales() {
    if constexpr (kHasCodes) {
      if (count_ < kStepBlock) forget_rest();
      for (std::uint64_t i = 0; i * Map::kBlock < count_; ++i) {
        const rules::StateScale scale = extremes_[i].scale();
        scales_[i] = scale.kept;
        reciprocals_[i] = scale.reciprocal;
      }
    }
  }

  OCTAVO_INLINE void encode(std::uint64_t first, const Floats& values) {
    if constexpr (kHasCodes) {
      store_bytes(StateEncoder<Map>(reciprocals_[first / Map::kBlock])(values), codes_ + first);
    }
  }

  OCTAVO_INLINE void end() {
    if (count_ == 0) return;  // it has not begun
    if constexpr (kHasCodes) {
      if (codes_ == unpacked_) pack_codes<Map>(unpacked_, count_, memory_);
    } else {
      if (values_ == buffer_) std::memcpy(memory_, buffer_, count_ * sizeof(float));
    }
  }

 private:
  /// What lies behind the elements of a tensor's last block becomes zeros, which are no extremes.
  OCTAVO_INLINE void forget_rest() {
    std::memset(buffer_ + count_, 0, (kStepBlock - count_) * sizeof(float));
    begin_again();
    for (std::uint64_t i = 0; i < kStepBlock; i += kLanes) extremes_[i / Map::kBlock].take(after(i));
  }

  std::uint64_t count_ = 0;
  std::uint8_t* memory_ = nullptr;
  float* scales_ = nullptr;
  float* values_ = buffer_;
  std::uint8_t* codes_ = unpacked_;
  Extremes<Map> extremes_[kStepBlock / Map::kBlock];
  float reciprocals_[kStepBlock / Map::kBlock] = {};  // of the scales
  alignas(64) float buffer_[kStepBlock] = {};
  alignas(64) std::uint8_t unpacked_[kStepBlock] = {};
};

}  // namespace octavo::cpu::OCTAVO_ISA
