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

/// The first half of a step updates momentum and parameters, the second encodes.
template <class Map>
class LionBlock {
 public:
  OCTAVO_INLINE explicit LionBlock(const rules::LionStep& step) : step_(step) {}
  OCTAVO_INLINE bool all_finite() const { return is_all(finite_); }

  OCTAVO_INLINE void begin(const StepOperands& operands, std::uint64_t first, std::uint64_t count) {
    operands_ = &operands;
    first_ = first;
    count_ = count;
    parameter_ = load_parameters(operands, first, count, parameters_);
    gradient_ = load_gradients(operands, first, count, gradients_);
    momentum_.begin(operands.mean, first, count);
  }

  OCTAVO_INLINE void first(std::uint64_t i) {
    Floats parameter = load_floats(parameter_ + i), momentum = momentum_.before(i);
    finite_ &= in_all(rules::lion(step_, load_floats(gradient_ + i), parameter, momentum));
    store_floats(parameter, parameter_ + i);
    momentum_.store(i, momentum);
  }

  OCTAVO_INLINE void between() {
    store_parameters(*operands_, first_, count_, parameters_);
    momentum_.work_out_scales();
  }

  OCTAVO_INLINE void second(std::uint64_t i) { momentum_.encode(i, momentum_.after(i)); }

  OCTAVO_INLINE void end() { momentum_.end(); }

 private:
  const rules::LionStep step_;
  const StepOperands* operands_ = nullptr;
  std::uint64_t first_ = 0, count_ = 0;
  StepBuffer parameters_, gradients_;
  float* parameter_ = parameters_.values;
  const float* gradient_ = gradients_.values;
  StateBlock<Map> momentum_;
  IntVector finite_ = IntVector{} - 1;
};

}  // namespace

void lion(Queue, const rules::LionStep& step, std::uint64_t count, const StepOperands& operands) {
  with_state_maps(operands.mean.format, [&]<class Map>(Map, auto) {
    LionBlock<Map> blocks[2] = {LionBlock<Map>(step), LionBlock<Map>(step)};
    for_step_blocks(operands, count, blocks);
    report(blocks[0].all_finite() && blocks[1].all_finite(), operands.nonfinite);
  });
}

}  // namespace octavo::cpu::OCTAVO_ISA
