// SPDX-License-Identifier: Apache-2.0
#include "octavo/codec/power_sgd.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <memory>
#include <string>

#include "octavo/codec/orthonormal.h"
#include "octavo/device/dispatch.h"
#include "octavo/device/scratch.h"

namespace octavo {

namespace {

constexpr std::string_view kAlternating = "alternating";

/// The two factors in a memory.
struct Factors {
  float *left, *right;
  Factors(float* memory, const rules::LowRank& shape) : left(memory), right(memory + shape.rank * shape.rows) {}
};

void copy(float* to, const float* from, std::uint64_t count, c10::Device device) {
  floats_at(to, count, device).copy_(floats_at(from, count, device));
}

/// Makes a factor orthonormal, whose rows have `length` elements. One of zeros is drawn.
void prepare(float* factor, const rules::LowRank& shape, std::uint64_t length, std::uint64_t key, c10::Device device) {
  at::Tensor own = floats_at(factor, shape.rank * length, device);
  at::Tensor rows = own.cpu();  // no copy on the CPU
  make_orthonormal(rows.mutable_data_ptr<float>(), shape.rank, length, key);
  if (!device.is_cpu()) own.copy_(rows);
}

/// Calls body(first, count) for parts of the rows, or of the columns.
template <class Body>
void for_lines(c10::Device device, std::uint64_t lines, std::uint64_t elements_of_one, Body body) {
  const auto grain = static_cast<std::int64_t>(std::max<std::uint64_t>(1, kGrainValues / elements_of_one));
  for_parts(device, static_cast<std::int64_t>(lines), grain, [&](std::int64_t from, std::int64_t to) {
    body(static_cast<std::uint64_t>(from), static_cast<std::uint64_t>(to - from));
  });
}

}  // namespace

PowerSgd::PowerSgd(std::uint64_t rank, bool is_alternating)
    : LinearMap("powersgd:" + std::to_string(rank) + (is_alternating ? std::string(":").append(kAlternating) : "")),
      rank_(rank),
      is_alternating_(is_alternating) {}

rules::LowRank PowerSgd::low_rank(const Matrix& shape) const {
  return {shape.rows, shape.columns, std::min({rank_, shape.rows, shape.columns})};
}

std::uint64_t PowerSgd::factors_size(const Matrix& shape) const {
  return low_rank(shape).rank * (shape.rows + shape.columns);
}

/// Whether a round sends the left factor, and not the right one.
bool PowerSgd::is_left(std::uint64_t step, std::size_t round) const {
  return is_alternating_ ? step % 2 == 1 : round == 0;
}

std::vector<std::uint64_t> PowerSgd::image_sizes(const Matrix& shape, std::uint64_t step) const {
  if (shape.count() == 0 || 2 * factors_size(shape) > shape.count()) return {};
  const std::uint64_t rank = low_rank(shape).rank, left = rank * shape.rows, right = rank * shape.columns;
  if (!is_alternating_) return {left, right};
  return {is_left(step, 0) ? left : right};
}

/// Fills the next memory, with zeros where there are no factors yet. Where all ranks' values are zeros, reconstruct()
/// is not called, and a factor that was to be sent stays as it is here.
void PowerSgd::begin(c10::Device device, const MapInput& tensor) const {
  const std::uint64_t size = factors_size(tensor.shape);
  at::Tensor next = floats_at(tensor.next_memory, size, device);
  tensor.memory ? next.copy_(floats_at(tensor.memory, size, device)) : next.zero_();
}

void PowerSgd::project(c10::Device device, const MapInput& tensor, std::size_t round,
                       std::span<float* const> images) const {
  const rules::LowRank shape = low_rank(tensor.shape);
  const Factors next(tensor.next_memory, shape);
  if (round == 0) begin(device, tensor);
  if (round > 0) copy(next.left, images[round - 1], shape.rank * shape.rows, device);
  const bool left = is_left(tensor.step, round);
  float* const other = left ? next.right : next.left;
  const std::uint64_t lines = left ? shape.rows : shape.columns, length = left ? shape.columns : shape.rows;
  prepare(other, shape, length, tensor.key + round, device);
  const LaunchScope scope(device);
  const auto find = left ? scope.kernels().find_left_factor : scope.kernels().find_right_factor;
  for_lines(device, lines, length, [&](std::uint64_t first, std::uint64_t count) {
    find(scope.queue(), tensor.values, shape, first, count, other, images[round]);
  });
}

void PowerSgd::reconstruct(c10::Device device, const MapInput& tensor, std::span<const float* const> images, float* out,
                           rules::Residual* next_residual, std::uint32_t* nonfinite) const {
  const rules::LowRank shape = low_rank(tensor.shape);
  const Factors next(tensor.next_memory, shape);
  const bool left = is_left(tensor.step, images.size() - 1);
  copy(left ? next.left : next.right, images.back(), shape.rank * (left ? shape.rows : shape.columns), device);
  const LaunchScope scope(device);
  for_lines(device, shape.rows, shape.columns, [&](std::uint64_t first, std::uint64_t count) {
    scope.kernels().multiply_factors(scope.queue(), tensor.values, shape, first, count, next.left, next.right, out,
                                     next_residual, nonfinite);
  });
}

LinearMapPtr make_power_sgd(const CodecText& text) {
  constexpr auto kExpected = "powersgd needs a rank from 1 to 64, as in powersgd:4 or powersgd:4:alternating";
  if (text.options.empty() || text.options.size() > 2) text.refuse(kExpected);
  const std::uint64_t rank = text.whole_number(text.options[0], 1, rules::kLargestRank, kExpected);
  const bool is_alternating = text.options.size() == 2;
  if (is_alternating && text.options[1] != kAlternating) text.refuse(kExpected);
  return std::make_shared<PowerSgd>(rank, is_alternating);
}

}  // namespace octavo
