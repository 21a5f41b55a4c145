// SPDX-License-Identifier: Apache-2.0
#include "octavo/rules/adamw.h"

#include <iterator>
#include <limits>

#include "tests/conformance/step_values.h"

namespace octavo::conformance {

namespace {

const rules::AdamWStep kStep{0.999F, 1e-3F, 0.1F, 0.999F, 0.001F, 2.0F, 1e-8F};

void expect_adamw_equals_reference(const rules::AdamWStep& step) {
  const auto adamw = [&](const KernelTable& table, const StepOperands& operands, std::uint64_t count) {
    table.adamw({}, step, count, operands);
  };
  expect_same_steps(step_forms(), adamw);
  expect_same_steps_in_all_forms(adamw);
}

TEST(AdamW, EqualsReference) { expect_adamw_equals_reference(kStep); }

TEST(AdamW, WithCoupledDecayEqualsReference) {
  rules::AdamWStep step = kStep;
  step.coupled_decay = 0.01F;
  expect_adamw_equals_reference(step);
}

/// Appends the middles between the values of a map, and the floats around them, for blocks whose extreme is 1.
template <class Map>
void append_middles(bool are_squares, std::vector<float>& gradients) {
  for (std::uint32_t code = 0; code + 1 < 1U << Map::kBits; ++code) {
    const float middle = (Map::decoded(code, 1.0F) + Map::decoded(code + 1, 1.0F)) / 2;
    const std::uint32_t bits = rules::to_bits(are_squares ? std::sqrt(middle) : middle);
    for (const std::uint32_t around : {bits - 2, bits - 1, bits, bits + 1, bits + 2}) {
      if (gradients.size() % rules::Momentum4::kBlock == 0) gradients.push_back(1.0F);
      gradients.push_back(rules::from_bits(around));
    }
  }
}

/// One rounding more or less gives another code for these gradients. The step makes moments of gradients alone.
TEST(AdamW, CodesBetweenTwoValuesEqualReference) {
  std::vector<float> gradients;
  append_middles<rules::Momentum8>(false, gradients);
  append_middles<rules::Variance8>(true, gradients);
  append_middles<rules::Momentum4>(false, gradients);
  append_middles<rules::Variance4>(true, gradients);
  rules::AdamWStep step = kStep;
  step.beta1_complement = step.beta2_complement = 1.0F;
  step.beta2 = 0.0F;
  for (const StateFormat state : {StateFormat::bits8, StateFormat::bits4}) {
    const StepForm form{FloatFormat::float32, FloatFormat::float32, state};
    StepMemory expected(form, gradients.size(), 0), got(form, gradients.size(), 0);
    for (StepMemory* memory : {&expected, &got}) {
      std::memcpy(memory->gradient.data(), gradients.data(), gradients.size() * sizeof(float));
      (memory == &got ? tested() : reference()).adamw({}, step, gradients.size(), memory->operands(0));
    }
    got.expect_same(expected);
  }
}

/// One call for a tensor and several calls for its parts give the same: each element has random bits of its own.
TEST(AdamW, MayBeCutBetweenBlocks) {
  constexpr std::uint64_t kCount = 2000;
  const StepForm form{FloatFormat::bfloat16, FloatFormat::bfloat16, StateFormat::bits8, false, true};
  StepMemory whole(form, kCount, 0), parts(form, kCount, 0);
  tested().adamw({}, kStep, kCount, whole.operands(0));
  tested().adamw({}, kStep, 3 * kStepBlock, parts.operands(0));
  tested().adamw({}, kStep, kCount - 3 * kStepBlock, parts.operands(0).from(3 * kStepBlock));
  parts.expect_same(whole);
}

/// Elements whose gradient is NaN stay as they are, and do not harm the others of their block.
TEST(AdamW, ANonfiniteGradientLeavesItsElementAlone) {
  for (const StateFormat state : {StateFormat::float32, StateFormat::bits8, StateFormat::bits4}) {
    StepMemory memory({FloatFormat::float32, FloatFormat::float32, state}, 300, 0);
    auto* gradients = reinterpret_cast<float*>(memory.gradient.data());
    auto* parameters = reinterpret_cast<float*>(memory.parameter.data());
    for (std::uint64_t i = 0; i < 300; ++i) {
      parameters[i] = 1.0F;
      gradients[i] = i % 3 == 0 ? std::nanf("") : 1.0F;
    }
    tested().adamw({}, kStep, 300, memory.operands(0));
    EXPECT_EQ(memory.nonfinite, 1U);
    for (std::uint64_t i = 0; i < 300; ++i) {
      if (i % 3 == 0) {
        EXPECT_EQ(parameters[i], 1.0F);
      } else {
        EXPECT_LT(parameters[i], 0.9999F);
        EXPECT_GT(parameters[i], 0.99F);
      }
    }
  }
}

/// Each special value is in a block of its own; two of them are finite with a square that is not.
TEST(AdamW, AFewNonfiniteGradientsEqualReference) {
  constexpr std::uint64_t kCount = 9 * kStepBlock + 100;
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const float special[] = {std::nanf(""), -std::nanf(""), kInfinity, -kInfinity, 1e30F, -1e30F};
  for (const float coupled_decay : {0.0F, 0.01F}) {
    rules::AdamWStep step = kStep;
    step.coupled_decay = coupled_decay;
    for (const StateFormat state : {StateFormat::float32, StateFormat::bits8, StateFormat::bits4}) {
      const StepForm form{FloatFormat::float32, FloatFormat::float32, state};
      StepMemory expected(form, kCount, 0), got(form, kCount, 0);
      for (StepMemory* memory : {&expected, &got}) {
        auto* gradients = reinterpret_cast<float*>(memory->gradient.data());
        std::memcpy(gradients, finite_values(kCount, 3).data(), kCount * sizeof(float));
        for (std::uint64_t k = 0; k < std::size(special); ++k) gradients[(k + 1) * kStepBlock + 17 * k] = special[k];
        gradients[kCount - 1] = std::nanf("");
        (memory == &got ? tested() : reference()).adamw({}, step, kCount, memory->operands(0));
      }
      EXPECT_EQ(got.nonfinite, 1U);
      got.expect_same(expected);
    }
  }
}

void expect_frozen_adamw_equals_reference(std::uint64_t count, std::uint64_t offset) {
  SCOPED_TRACE(testing::Message() << "count " << count << " offset " << offset);
  Guarded<float> expected(count, 0), got(count, offset), update(count, offset);
  const auto run = [&](const KernelTable& table, Guarded<float>& parameter) {
    std::copy_n(finite_values(count, 3).data(), count, parameter.data());
    std::copy_n(finite_values(count, 4).data(), count, update.data());
    put_specials({&parameter, &update});
    table.frozen_adamw({}, 0.999F, 1e-3F, count, update.data(), parameter.data());
  };
  run(reference(), expected);
  run(tested(), got);
  got.expect_same_bits(expected);
  got.expect_untouched_around();
}

TEST(AdamW, FrozenEqualsReference) {
  for (const std::uint64_t count : kCounts) {
    for (const std::uint64_t offset : kOffsets) expect_frozen_adamw_equals_reference(count, offset);
  }
  expect_frozen_adamw_equals_reference(kLargeCount, 0);
}

}  // namespace

}  // namespace octavo::conformance
