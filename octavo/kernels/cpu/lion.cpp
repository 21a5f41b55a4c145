// SPDX-License-Identifier: Apache-2.0
#include "octavo/rules/lion.h"

#include "octavo/kernels/cpu/step_state.h"
#include "octavo/kernels/cpu/table.h"

namespace octavo::cpu::OCTAVO_ISA {

void mix_momentum(Queue, const rules::MomentumMix& mix, std::uint64_t count, float* values, const float* momentum,
                  float* next) {
  for (std::uint64_t i = 0; i < count; ++i) next[i] = rules::mix_momentum(mix, values[i], momentum[i]);
}

void sign_step(Queue, float decay, float step_size, std::uint64_t count, const float* update, float* parameter) {
  for (std::uint64_t i = 0; i < count; ++i) {
    parameter[i] = rules::sign_step(decay, step_size, parameter[i], update[i]);
  }
}

namespace {

/// The first half of a step updates momentum and parameters; the second half encodes.
template <class Map>
class LionBlock {
 public:
  static constexpr std::uint64_t kStateBits = Map::kBits;
  struct Room {
    StepBuffer parameters, gradients;
    StateRoom momentum;
  };

  OCTAVO_INLINE LionBlock(const rules::LionStep& step, Room& room)
      : step_(step),
        room_(&room),
        parameter_(room.parameters.values),
        gradient_(room.gradients.values),
        momentum_(room.momentum) {}
  OCTAVO_INLINE bool takes_all() const { return is_all(finite_); }

  OCTAVO_INLINE void begin(const StepOperands& operands, std::uint64_t first, std::uint64_t count) {
    operands_ = &operands;
    first_ = first;
    count_ = count;
    parameter_ = load_parameters(operands, first, count, room_->parameters);
    gradient_ = load_gradients(operands, first, count, room_->gradients);
    momentum_.begin(operands.mean, first, count);
  }

  OCTAVO_INLINE void first(std::uint64_t i) {
    Floats parameter = load_floats(parameter_ + i), momentum = momentum_.before(i);
    finite_ &= in_all(rules::lion(step_, load_floats(gradient_ + i), parameter, momentum));
    store_floats(parameter, parameter_ + i);
    momentum_.store(i, momentum);
  }

  OCTAVO_INLINE void between() {
    store_parameters(*operands_, first_, count_, room_->parameters);
    momentum_.work_out_scales();
  }

  OCTAVO_INLINE void second(std::uint64_t i) { momentum_.encode(i, momentum_.after(i)); }

  OCTAVO_INLINE void end() { momentum_.end(); }

 private:
  rules::LionStep step_;
  Room* room_;
  const StepOperands* operands_ = nullptr;
  std::uint64_t first_ = 0, count_ = 0;
  float* parameter_;
  const float* gradient_;
  StagedStateBlock<Map> momentum_;
  IntVector finite_ = IntVector{} - 1;
};

}  // namespace

void lion(Queue, const rules::LionStep& step, std::uint64_t count, const StepOperands& operands) {
  with_state_maps(operands.mean.format, [&]<class Map>(Map, auto) {
    report(for_step_blocks<LionBlock<Map>>(operands, count, step), operands.nonfinite);
  });
}

}  // namespace octavo::cpu::OCTAVO_ISA
