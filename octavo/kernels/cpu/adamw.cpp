// SPDX-License-Identifier: Apache-2.0
#include "octavo/rules/adamw.h"

#include "octavo/kernels/cpu/step_state.h"
#include "octavo/kernels/cpu/table.h"

namespace octavo::cpu::OCTAVO_ISA {

namespace {

/// Writes to `decayed` the gradients of a block plus what Adam's weight decay adds to them, and returns `decayed`. It
/// is not inlined, because few steps have such a decay.
[[gnu::noinline]] const float* add_decay(rules::AdamWStep step, const float* parameter, const float* gradient,
                                         float* decayed) {
  for (std::uint64_t i = 0; i < kStepBlock; i += kLanes) {
    store_floats(rules::adamw_gradient(step, load_floats(gradient + i), load_floats(parameter + i)), decayed + i);
  }
  return decayed;
}

/// The first half of a step updates the moments; the second half moves the parameters and encodes.
template <class MeanMap, class SquareMap>
class AdamWBlock {
 public:
  static constexpr std::uint64_t kStateBits = MeanMap::kBits;
  struct Room {
    StepBuffer parameters, gradients;
    StateRoom mean, square;
  };

  OCTAVO_INLINE AdamWBlock(const rules::AdamWStep& step, Room& room)
      : step_(step),
        room_(&room),
        parameter_(room.parameters.values),
        gradient_(room.gradients.values),
        mean_(room.mean),
        square_(room.square) {}
  OCTAVO_INLINE bool takes_all() const { return is_all(taken_); }

  OCTAVO_INLINE void begin(const StepOperands& operands, std::uint64_t first, std::uint64_t count) {
    operands_ = &operands;
    first_ = first;
    count_ = count;
    parameter_ = load_parameters(operands, first, count, room_->parameters);
    gradient_ = load_gradients(operands, first, count, room_->gradients);
    if (step_.coupled_decay != 0.0F) gradient_ = add_decay(step_, parameter_, gradient_, room_->gradients.values);
    mean_.begin(operands.mean, first, count);
    square_.begin(operands.square, first, count);
    taken_ = IntVector{} - 1;
  }

  OCTAVO_INLINE void first(std::uint64_t i) {
    if constexpr (kHasCodes) {
      Floats mean = mean_.before(i), square = square_.before(i);
      rules::adamw_moments(step_, load_floats(gradient_ + i), mean, square);
      mean_.store(i, mean);
      square_.store(i, square);
    } else {  // memory is the limit: a second half would have to load everything once more
      const Floats gradient = load_floats(gradient_ + i);
      if (!takes(gradient)) [[unlikely]] {
        taken_ &= whole_where_taken(*this, i);
        return;
      }
      Floats mean = mean_.before(i), square = square_.before(i);
      rules::adamw_moments(step_, gradient, mean, square);
      mean_.store(i, mean);
      square_.store(i, square);
      store_floats(rules::adamw_moved(step_, load_floats(parameter_ + i), mean, square), parameter_ + i);
    }
  }

  OCTAVO_INLINE void between() {
    if constexpr (kHasCodes) {
      if (!square_.is_finite()) *this = gone_through_again(*this);
    }
    mean_.work_out_scales();
    square_.work_out_scales();
    if constexpr (kHasCodes) {
      if (!takes_all()) *this = finished(*this);
    }
  }

  OCTAVO_INLINE void second(std::uint64_t i) {
    if constexpr (!kHasCodes) return;
    const Floats parameter = load_floats(parameter_ + i), mean = mean_.after(i), square = square_.after(i);
    store_floats(rules::adamw_moved(step_, parameter, mean, square), parameter_ + i);
    mean_.encode(i, mean);
    square_.encode(i, square);
  }

  OCTAVO_INLINE void end() {
    if (operands_) store_parameters(*operands_, first_, count_, room_->parameters);
    mean_.end();
    square_.end();
  }

 private:
  static constexpr bool kHasCodes = StagedStateBlock<MeanMap>::kHasCodes;

  /// Whether the rule takes all of these gradients: adamw_takes() in fewer instructions.
  OCTAVO_INLINE static bool takes(const Floats& gradients) {
    PositiveExtreme extreme;
    extreme.take(gradients * gradients);
    return extreme.is_finite();
  }

  OCTAVO_INLINE Ints taken_moments(std::uint64_t i, Floats& mean, Floats& square) {
    mean = mean_.before(i);
    square = square_.before(i);
    const Ints taken = rules::adamw_taken_moments(step_, load_floats(gradient_ + i), mean, square);
    taken_ &= in_all(taken);
    mean_.store(i, mean);
    square_.store(i, square);
    return taken;
  }

  // Few blocks have a gradient that is not taken. The instructions that leave its element as it is would slow down all
  // blocks.

  /// Does both halves of a state without codes, and leaves everything as it is where a gradient is not taken. Returns
  /// in which lanes all are taken.
  [[gnu::noinline]] static IntVector whole_where_taken(AdamWBlock block, std::uint64_t i) {
    const Floats parameter = load_floats(block.parameter_ + i);
    Floats mean, square;
    const Ints taken = block.taken_moments(i, mean, square);
    const Floats moved = rules::adamw_moved(block.step_, parameter, mean, square);
    store_floats(chosen(taken, moved, parameter), block.parameter_ + i);
    return in_all(taken);
  }

  /// Does the first half once more, and leaves the moments as they are where a gradient is not taken.
  [[gnu::noinline]] static AdamWBlock gone_through_again(AdamWBlock block) {
    block.mean_.begin_again();
    block.square_.begin_again();
    Floats mean, square;
    for (std::uint64_t i = 0; i < kStepBlock; i += kLanes) block.taken_moments(i, mean, square);
    return block;
  }

  /// Does the second half and the end, and leaves the parameters as they are where a gradient is not taken. Returns a
  /// block that has not begun.
  [[gnu::noinline]] static AdamWBlock finished(AdamWBlock block) {
    for (std::uint64_t i = 0; i < kStepBlock; i += kLanes) {
      const Floats parameter = load_floats(block.parameter_ + i);
      block.second(i);
      const Floats moved = load_floats(block.parameter_ + i);
      store_floats(chosen(rules::adamw_takes(load_floats(block.gradient_ + i)), moved, parameter),
                   block.parameter_ + i);
    }
    block.end();
    AdamWBlock next(block.step_, *block.room_);
    next.taken_ = block.taken_;
    return next;
  }

  rules::AdamWStep step_;
  Room* room_;
  const StepOperands* operands_ = nullptr;
  std::uint64_t first_ = 0, count_ = 0;
  float* parameter_;
  const float* gradient_;
  StagedStateBlock<MeanMap> mean_;
  StagedStateBlock<SquareMap> square_;
  IntVector taken_ = IntVector{} - 1;
};

}  // namespace

void adamw(Queue, const rules::AdamWStep& step, std::uint64_t count, const StepOperands& operands) {
  with_state_maps(operands.mean.format, [&]<class MeanMap, class SquareMap>(MeanMap, SquareMap) {
    report(for_step_blocks<AdamWBlock<MeanMap, SquareMap>>(operands, count, step), operands.nonfinite);
  });
}

void frozen_adamw(Queue, float decay, float step_size, std::uint64_t count, const float* update, float* parameter) {
  for (std::uint64_t i = 0; i < count; ++i) {
    parameter[i] = rules::frozen_adamw(decay, step_size, parameter[i], update[i]);
  }
}

}  // namespace octavo::cpu::OCTAVO_ISA
