// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tests/conformance/conformance.h"

/// The memory of an optimizer's step, in each format.
namespace octavo::conformance {

struct StepForm {
  FloatFormat parameter, gradient;
  StateFormat state;
  bool has_tail = false, rounds_at_random = false, has_factor = false;
};

inline constexpr FloatFormat kFloats[] = {FloatFormat::float32, FloatFormat::bfloat16, FloatFormat::float16};
inline constexpr StateFormat kStates[] = {StateFormat::float32, StateFormat::bits8, StateFormat::bits4};

/// Returns some forms: every state format with every parameter format and with every gradient format, and the options
/// that only bfloat16 has. Not all combinations: a device compiles a program for each three formats, which takes
/// seconds.
inline std::vector<StepForm> step_forms() {
  std::vector<StepForm> forms;
  for (std::size_t state = 0; state < 3; ++state) {
    for (std::size_t i = 0; i < 3; ++i) forms.push_back({kFloats[i], kFloats[(i + 2 * state) % 3], kStates[state]});
  }
  const StepForm of_bf16 = forms[1];
  forms.push_back({of_bf16.parameter, of_bf16.gradient, of_bf16.state, /*has_tail=*/true});
  forms.push_back({of_bf16.parameter, of_bf16.gradient, of_bf16.state, /*has_tail=*/false, /*rounds_at_random=*/true});
  forms.push_back({of_bf16.parameter, of_bf16.gradient, of_bf16.state, true, false, /*has_factor=*/true});
  return forms;
}

/// Returns every form that operands can have.
inline std::vector<StepForm> all_step_forms() {
  std::vector<StepForm> forms;
  const auto add = [&](FloatFormat parameter, bool has_tail, bool rounds_at_random) {
    for (const FloatFormat gradient : kFloats) {
      for (const StateFormat state : kStates) {
        for (const bool has_factor : {false, true}) {
          forms.push_back({parameter, gradient, state, has_tail, rounds_at_random, has_factor});
        }
      }
    }
  };
  for (const FloatFormat parameter : kFloats) add(parameter, false, false);
  add(FloatFormat::bfloat16, /*has_tail=*/true, /*rounds_at_random=*/false);
  add(FloatFormat::bfloat16, /*has_tail=*/false, /*rounds_at_random=*/true);
  return forms;
}

inline void put_float(FloatFormat format, float value, std::uint8_t* to) {
  const std::uint16_t bits =
      format == FloatFormat::bfloat16 ? rules::to_bf16(value).bits : static_cast<std::uint16_t>(rules::to_fp16(value));
  if (format == FloatFormat::float32) {
    std::memcpy(to, &value, sizeof value);
  } else {
    std::memcpy(to, &bits, sizeof bits);
  }
}

/// A new state in some format: zeros, at an offset in elements.
struct StateMemory {
  Guarded<std::uint8_t> values;
  Guarded<float> scales;
  StateFormat format;

  /// Codes may begin at any byte, floats at any multiple of four bytes.
  StateMemory(StateFormat its_format, std::uint8_t code_of_zero, std::uint64_t count, std::uint64_t offset)
      : values(state_bytes(its_format, count), its_format == StateFormat::float32 ? 4 * offset : offset),
        scales(its_format == StateFormat::float32
                   ? 0
                   : (count + codes_per_scale(its_format) - 1) / codes_per_scale(its_format)),
        format(its_format) {
    const int byte = its_format == StateFormat::float32 ? 0 : code_of_zero;
    std::memset(values.data(), byte, values.count());
    for (std::uint64_t i = 0; i < scales.count(); ++i) scales.data()[i] = 0;
  }
  StateView view() { return {values.data(), format == StateFormat::float32 ? nullptr : scales.data(), format}; }
  void expect_same(StateMemory& other) {
    values.expect_same_bits(other.values);
    scales.expect_same_bits(other.scales);
    values.expect_untouched_around();
    scales.expect_untouched_around();
  }
};

/// A parameter with gradients of many magnitudes; in some steps some gradients are not finite.
struct StepMemory {
  StepForm form;
  std::uint64_t count;
  Guarded<std::uint8_t> parameter, gradient;
  Guarded<std::int8_t> tail;
  StateMemory mean, square;
  std::uint32_t nonfinite = 0;
  float factor = 0.5F;
  std::uint64_t first = 0;  // StepOperands::first

  StepMemory(const StepForm& its_form, std::uint64_t its_count, std::uint64_t offset)
      : form(its_form),
        count(its_count),
        parameter(bytes_of(form.parameter) * count, bytes_of(form.parameter) * offset),
        gradient(bytes_of(form.gradient) * count, bytes_of(form.gradient) * offset),
        tail(form.has_tail ? count : 0, offset),
        mean(form.state, form.state == StateFormat::bits8 ? 127 : 0x77, count, offset),
        square(form.state, 0, count, offset) {
    const auto values = finite_values(count, 5);
    for (std::uint64_t i = 0; i < count; ++i) put_float(form.parameter, values[i], at(parameter, form.parameter, i));
    if (tail.count() > 0) std::memset(tail.data(), 0, tail.count());
    draw(0);
  }

  static std::uint8_t* at(Guarded<std::uint8_t>& memory, FloatFormat format, std::uint64_t i) {
    return memory.data() + bytes_of(format) * i;
  }
  /// Draws gradients that depend on the step's number; in every second step all of them are finite.
  void draw(std::uint64_t step) {
    const auto values = step % 2 == 1 ? finite_values(count, 11 + step) : any_values(count, 11 + step);
    for (std::uint64_t i = 0; i < count; ++i) put_float(form.gradient, values[i], at(gradient, form.gradient, i));
  }
  StepOperands operands(std::uint64_t step) {
    return {.parameter = parameter.data(),
            .parameter_format = form.parameter,
            .tail = form.has_tail ? tail.data() : nullptr,
            .gradient = gradient.data(),
            .gradient_format = form.gradient,
            .mean = mean.view(),
            .square = square.view(),
            .gradient_factor = form.has_factor ? &factor : nullptr,
            .nonfinite = &nonfinite,
            .rounds_at_random = form.rounds_at_random,
            .rounding_key = 77 + step,
            .first = first};
  }
  void expect_same(StepMemory& other) {
    parameter.expect_same_bits(other.parameter);
    parameter.expect_untouched_around();
    tail.expect_same_bits(other.tail);
    tail.expect_untouched_around();
    mean.expect_same(other.mean);
    square.expect_same(other.square);
    EXPECT_EQ(nonfinite, other.nonfinite);
  }
};

/// Checks that some steps by step(table, operands, count) give the reference's bits and write nothing else. Misaligned
/// tensors are also parts of a larger one whose first element is in the middle of a group of random bits.
template <class Step>
void expect_same_steps(const StepForm& form, std::uint64_t count, std::uint64_t offset, std::uint64_t steps,
                       Step step) {
  if (testing::Test::HasFailure()) return;  // one is enough
  SCOPED_TRACE(testing::Message() << "formats " << static_cast<int>(form.parameter) << static_cast<int>(form.gradient)
                                  << static_cast<int>(form.state) << " tail " << form.has_tail << " at random "
                                  << form.rounds_at_random << " factor " << form.has_factor << " count " << count
                                  << " offset " << offset);
  constexpr std::uint64_t kInAGroup = (std::uint64_t{1} << 38U) - 61;  // and before 2^32 groups of 64 elements
  StepMemory expected(form, count, 0), got(form, count, offset);
  expected.first = got.first = offset == 0 ? 0 : kInAGroup;
  for (std::uint64_t i = 0; i < steps; ++i) {
    for (StepMemory* memory : {&expected, &got}) {
      memory->draw(i);
      step(memory == &got ? tested() : reference(), memory->operands(i), count);
    }
  }
  got.expect_same(expected);
}

/// Checks three steps of each form at all counts.
template <class Step>
void expect_same_steps(const std::vector<StepForm>& forms, Step step) {
  for (const StepForm& form : forms) {
    for (const std::uint64_t count : kCounts) {
      for (const std::uint64_t offset : {0, 3}) expect_same_steps(form, count, offset, 3, step);
    }
  }
}

/// Checks what would take too long on devices, and so only on the CPU: three steps of every form, some forms at every
/// misalignment, and one step of a large tensor.
template <class Step>
void expect_same_steps_in_all_forms(Step step) {
  if (compiles_kernels()) return;
  for (const StepForm& form : all_step_forms()) {
    for (const std::uint64_t count : {std::uint64_t{1}, kStepBlock, 3 * kStepBlock + 77}) {
      expect_same_steps(form, count, count % 2, 3, step);
    }
  }
  constexpr std::uint64_t kVectorBytes = 64;  // as many misalignments have elements of one byte, as codes are
  for (const StepForm& form : step_forms()) {
    for (std::uint64_t offset = 1; offset < kVectorBytes; ++offset) {
      expect_same_steps(form, 2 * kStepBlock + 77, offset, 3, step);
    }
  }
  for (const StateFormat state : {StateFormat::float32, StateFormat::bits8, StateFormat::bits4}) {
    expect_same_steps({FloatFormat::float32, FloatFormat::bfloat16, state}, kLargeCount, 1, 1, step);
  }
}

}  // namespace octavo::conformance
