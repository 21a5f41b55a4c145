// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "octavo/kernels/cpu/extremes.h"
#include "octavo/kernels/cpu/state_codes.h"
#include "octavo/kernels/cpu/step_blocks.h"

/// The states of an optimizer's step, a block at a time.
namespace octavo::cpu::OCTAVO_ISA {

/// Stands in for a map: a state in float32.
struct PlainState {
  static constexpr unsigned kBits = 32;
  static constexpr std::uint64_t kBlock = kStepBlock;
  static constexpr bool kSigned = true;
};

/// Calls visit(map of momenta, map of variances) with the maps of a format, which both states have.
template <class Visit>
OCTAVO_INLINE void with_state_maps(StateFormat format, Visit visit) {
  switch (format) {
    case StateFormat::float32: return visit(PlainState{}, PlainState{});
    case StateFormat::bits8: return visit(rules::Momentum8{}, rules::Variance8{});
    case StateFormat::bits4: return visit(rules::Momentum4{}, rules::Variance4{});
  }
}

/// The memory that a block of a state may need.
struct StateRoom {
  alignas(64) float values[kStepBlock] = {};
  alignas(64) std::uint8_t codes[kStepBlock] = {};
};

/// A block of a state. Call begin(); before() and store() for all of its elements; work_out_scales(); after() and
/// encode() for all of them; end(). Codes become floats just before these are updated. In the last block of a tensor,
/// what follows its elements up to a whole block is meaningless.
template <class Map>
class StagedStateBlock {
 public:
  static constexpr bool kHasCodes = Map::kBits < 32;

  OCTAVO_INLINE explicit StagedStateBlock(StateRoom& room) : room_(&room), values_(room.values), codes_(room.codes) {}

  OCTAVO_INLINE void begin(const StateView& state, std::uint64_t first, std::uint64_t count) {
    const bool is_whole = count == kStepBlock;
    count_ = count;
    memory_ = static_cast<std::uint8_t*>(state.values) + first * Map::kBits / 8;
    if constexpr (kHasCodes) {
      begin_again();
      scales_ = state.scales + first / Map::kBlock;
      for (std::uint64_t i = 0; i * Map::kBlock < count; ++i) of_[i].decoder = Decoder(scales_[i]);
      codes_ = Map::kBits == 8 && is_whole ? memory_ : room_->codes;
      if (codes_ == memory_) return;
      unpack_codes<Map>(memory_, count, room_->codes);
      std::memset(room_->codes + count, 0, kStepBlock - count);
    } else {
      values_ = is_whole ? reinterpret_cast<float*>(memory_) : room_->values;
      if (is_whole) return;
      std::memcpy(room_->values, memory_, count * sizeof(float));
      std::memset(room_->values + count, 0, (kStepBlock - count) * sizeof(float));
    }
  }

  /// Returns the values as they were before the step.
  OCTAVO_INLINE Floats before(std::uint64_t first) const {
    if constexpr (kHasCodes) {
      return of_[number(first)].decoder(load_ints(codes_ + first));
    } else {
      return load_floats(values_ + first);
    }
  }

  OCTAVO_INLINE void store(std::uint64_t first, const Floats& values) {
    store_floats(values, values_ + first);
    if constexpr (kHasCodes) of_[number(first)].extreme.take(values);
  }
  OCTAVO_INLINE Floats after(std::uint64_t first) const { return load_floats(values_ + first); }

  /// Whether all values that were stored are finite. Only for a state of values that are at least 0.
  OCTAVO_INLINE bool is_finite() const {
    bool finite = true;
    for (const auto& block : of_) finite &= block.extreme.is_finite();
    return finite;
  }
  /// Forgets the extremes, because all values are stored once more.
  OCTAVO_INLINE void begin_again() {
    for (auto& block : of_) block.extreme = {};
  }

  /// Works out the scales. Called after all values of the block are stored.
  OCTAVO_INLINE void work_out_scales() {
    if constexpr (kHasCodes) {
      if (count_ < kStepBlock) forget_rest();
      for (std::uint64_t i = 0; i * Map::kBlock < count_; ++i) {
        const rules::StateScale scale = rules::state_scale(of_[i].extreme.value());
        scales_[i] = scale.kept;
        of_[i].reciprocal = scale.reciprocal;
      }
    }
  }

  OCTAVO_INLINE void encode(std::uint64_t first, const Floats& values) {
    if constexpr (kHasCodes) store_bytes(StateEncoder<Map>(of_[number(first)].reciprocal)(values), codes_ + first);
  }

  OCTAVO_INLINE void end() {
    if (count_ == 0) return;  // it has not begun
    if constexpr (kHasCodes) {
      if (codes_ != memory_) pack_codes<Map>(room_->codes, count_, memory_);
    } else {
      if (values_ == room_->values) std::memcpy(memory_, room_->values, count_ * sizeof(float));
    }
  }

 private:
  using Decoder = StateDecoder<Map>;
  static constexpr std::uint64_t kBlocks = kStepBlock / Map::kBlock;  // blocks of codes, each with a scale of its own
  struct OfBlock {
    Decoder decoder = Decoder(0.0F);
    Extreme<Map> extreme;
    float reciprocal = 0.0F;  // of the scale
  };

  /// Returns the number of the block of codes. It is written so that the compiler knows it where there is only one
  /// block.
  OCTAVO_INLINE static constexpr std::uint64_t number(std::uint64_t first) {
    return kBlocks == 1 ? 0 : first / Map::kBlock;
  }

  /// Sets what follows the elements of a tensor's last block to zeros, which are no extremes.
  OCTAVO_INLINE void forget_rest() {
    std::memset(room_->values + count_, 0, (kStepBlock - count_) * sizeof(float));
    begin_again();
    for (std::uint64_t i = 0; i < kStepBlock; i += kLanes) of_[number(i)].extreme.take(after(i));
  }

  StateRoom* room_;
  float* values_;
  std::uint8_t* codes_;
  std::uint64_t count_ = 0;
  std::uint8_t* memory_ = nullptr;
  float* scales_ = nullptr;
  OfBlock of_[kBlocks];
};

}  // namespace octavo::cpu::OCTAVO_ISA
