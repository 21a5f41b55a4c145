// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <tuple>
#include <type_traits>

#include "octavo/kernels/lanes/chunks.h"
#include "octavo/kernels/lanes/device_backend.h"
#include "octavo/kernels/step_operands.h"
#include "octavo/rules/count_sketch.h"
#include "octavo/rules/low_rank.h"
#include "octavo/rules/random_k.h"
#include "octavo/rules/top_k.h"

/// Enqueues kernels, after all that the queue was given before. On the calling thread the memory is ordinary, and a
/// call returns when its kernel has run.
namespace octavo::lanes {

// flat() returns the arguments of a kernel, with structs taken apart (lanes.h says why).
inline auto flat(const EncodeInput& in) {
  return std::tuple(in.gradient, in.residual, in.momentum, in.preconditioner, in.others, in.gradient_weight,
                    in.momentum_weight, in.sum_weight, in.rounding_key, in.first);
}
inline auto flat(const Blocks& b) {
  return std::tuple(b.count, b.block, b.payload.scales, b.payload.codes, b.blocks, b.chunks_of_block,
                    b.blocks_of_group);
}
inline auto flat(const rules::TopK& shape) { return std::tuple(shape.tile, shape.kept); }
inline auto flat(const rules::LowRank& shape) { return std::tuple(shape.rows, shape.columns, shape.rank); }
inline auto flat(const rules::RandomK& shape) {
  return std::tuple(shape.key, shape.stride, shape.before, shape.is_unbiased);
}
inline auto flat(const rules::CountSketch& shape) { return std::tuple(shape.key, shape.rows, shape.columns); }
inline auto flat(const rules::SketchBlocks& part) { return std::tuple(part.first, part.count); }
inline auto flat(const StepOperands& step) {
  return std::tuple(step.parameter, step.tail, step.gradient, step.mean.values, step.mean.scales, step.square.values,
                    step.square.scales, step.gradient_factor, step.nonfinite,
                    static_cast<std::uint32_t>(step.rounds_at_random), step.rounding_key, step.first);
}
template <class Argument>
auto flat(const Argument& argument) {
  return std::tuple(argument);
}

/// Returns the options with which the program of a step is compiled. Both states of a step have the same format.
inline std::string step_options(const StepOperands& step) {
  const auto define = [](const char* name, auto value) {
    return std::string("-DOCTAVO_") + name + "=" + std::to_string(static_cast<std::uint32_t>(value));
  };
  return define("PARAMETER_FORMAT", step.parameter_format) + " " + define("GRADIENT_FORMAT", step.gradient_format) +
         " " + define("STATE_FORMAT", step.mean.format);
}

template <class... Arguments>
void launch(Queue queue, const KernelName& name, std::uint64_t groups, std::uint64_t group_size,
            const Arguments&... arguments) {
  const auto all = std::tuple_cat(flat(arguments)...);
  std::apply(
      [&](const auto&... each) {
        const std::array views = {
            KernelArgument{&each, sizeof each, std::is_pointer_v<std::remove_cvref_t<decltype(each)>>}...};
        enqueue(queue, name, {groups, group_size}, views);
      },
      all);
}

/// Launches a kernel that decides itself what each group takes. A group is as many items as run together.
template <class... Arguments>
void launch_groups(Queue queue, const KernelName& name, std::uint64_t groups, const Arguments&... arguments) {
  if (groups > 0) launch(queue, name, groups, widths_of(queue).lanes, arguments...);
}

/// Launches a kernel in which each group takes a span of elements.
template <class... Arguments>
void launch_spans(Queue queue, const KernelName& name, std::uint64_t count, const Arguments&... arguments) {
  if (count == 0) return;
  const Widths widths = widths_of(queue);
  launch(queue, name, divide_up(count, widths.span), widths.lanes, arguments...);
}

/// Launches a kernel in which each item takes one element.
template <class... Arguments>
void launch_elements(Queue queue, const KernelName& name, std::uint64_t count, const Arguments&... arguments) {
  if (count == 0) return;
  const std::uint64_t size = widths_of(queue).largest_group;
  launch(queue, name, divide_up(count, size), size, arguments...);
}

}  // namespace octavo::lanes
