// SPDX-License-Identifier: Apache-2.0
#include "octavo/codec/count_sketch.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <string_view>

#include "octavo/device/dispatch.h"
#include "octavo/device/scratch.h"
#include "octavo/kernels/round_up.h"

namespace octavo {

namespace {

constexpr std::uint64_t kSketchRows = 3;
constexpr std::uint64_t kFixedKey = 0x7F4A7C159E3779B9;  // a part of the format: a saved sketch is read with it

constexpr std::string_view kExact = "exact";

std::string sketch_text(double ratio, double taken, bool is_exact) {
  std::string text = "sketch:" + shortest(ratio);
  if (taken != ratio * CountSketch::kTakenOfCells) text += ":" + shortest(taken);
  return is_exact ? text + ":" + std::string(kExact) : text;
}

/// Finds the largest of some values, the first of equal ones, and their indices.
void find_largest(const LaunchScope& scope, c10::Device device, const float* values, const rules::TopK& shape,
                  float* largest, std::uint32_t* indices) {
  static thread_local at::Tensor scratch_memory;
  const ScratchFloats scratch(device, top_k_scratch(shape.tile, shape), scratch_memory);
  scope.kernels().select_top(scope.queue(), {values}, shape.tile, shape, scratch.data(), largest, indices, nullptr);
}

}  // namespace

void insert_sketch(c10::Device device, const EncodeInput& input, std::uint64_t count, const rules::CountSketch& shape,
                   float* sketch) {
  if (count == 0) return;
  // each thread takes some blocks of the sketch, and finds the elements that are placed there
  const std::uint64_t grain = shape.blocks() * kGrainValues / (shape.rows * count);
  for_parts(device, static_cast<std::int64_t>(shape.blocks()),
            static_cast<std::int64_t>(std::clamp<std::uint64_t>(grain, 1, shape.blocks())),
            [&](std::int64_t first, std::int64_t last) {
              const LaunchScope scope(device);
              const rules::SketchBlocks part = {static_cast<std::uint64_t>(first),
                                                static_cast<std::uint64_t>(last - first)};
              scope.kernels().insert_sketch(scope.queue(), input, count, shape, part, sketch);
            });
}

void estimate_sketch(c10::Device device, const float* sketch, const rules::CountSketch& shape, std::uint64_t count,
                     float* estimates) {
  constexpr std::uint64_t kGroup = rules::kSketchGroup;
  for_parts(device, static_cast<std::int64_t>(divide_up(count, kGroup)), kGrainValues / kGroup,
            [&](std::int64_t from, std::int64_t to) {
              const std::uint64_t first = static_cast<std::uint64_t>(from) * kGroup;
              const std::uint64_t last = std::min(static_cast<std::uint64_t>(to) * kGroup, count);
              const LaunchScope scope(device);
              scope.kernels().estimate_sketch(scope.queue(), sketch, shape, first, last - first, estimates + first);
            });
}

CountSketch::CountSketch(double ratio, double taken, bool is_exact)
    : LinearMap(sketch_text(ratio, taken, is_exact)), ratio_(ratio), taken_(taken), is_exact_(is_exact) {}

std::uint64_t CountSketch::columns(const Matrix& shape) const {
  const double blocks = ratio_ * static_cast<double>(shape.count()) / (kSketchRows * rules::kSketchGroup);
  constexpr std::uint64_t kMostBlocks = (1ULL << 32) / rules::kSketchGroup - 1;
  return std::clamp<std::uint64_t>(static_cast<std::uint64_t>(blocks), 1, kMostBlocks) * rules::kSketchGroup;
}

rules::TopK CountSketch::taken_of(const Matrix& shape) const {
  const std::uint64_t count = std::max<std::uint64_t>(1, shape.count());
  const auto taken = static_cast<std::uint64_t>(std::ceil(taken_ * static_cast<double>(count)));
  return {count, std::clamp<std::uint64_t>(taken, 1, count)};
}

std::uint64_t CountSketch::memory_size(const MapInput& tensor) const {
  if (is_exact_) return rules::index_words(taken_of(tensor.shape), tensor.shape.count());
  return (tensor.momentum > 0 ? 2 : 1) * kSketchRows * columns(tensor.shape);
}

std::vector<std::uint64_t> CountSketch::image_sizes(const Matrix& shape, std::uint64_t) const {
  const std::uint64_t cells = kSketchRows * columns(shape), values = is_exact_ ? taken_of(shape).kept : 0;
  if (2 * (cells + values) > shape.count()) return {};
  return is_exact_ ? std::vector{cells, values} : std::vector{cells};
}

rules::CountSketch CountSketch::sketch_of(const MapInput& tensor) const {
  const bool is_kept = tensor.error_feedback && !is_exact_;
  return {is_kept ? rules::seeded_key(kFixedKey, tensor.seed) : tensor.key, kSketchRows, columns(tensor.shape)};
}

void CountSketch::project(c10::Device device, const MapInput& tensor, std::size_t round,
                          std::span<float* const> images) const {
  if (round == 0) return sketch_values(device, tensor, images[0]);
  send_exact(device, tensor, images[0], images[1]);
}

void CountSketch::sketch_values(c10::Device device, const MapInput& tensor, float* image) const {
  const rules::CountSketch shape = sketch_of(tensor);
  floats_at(image, shape.cells(), device).zero_();
  insert_sketch(device, tensor.values, tensor.shape.count(), shape, image);
  const std::uint64_t kept = memory_size(tensor);
  at::Tensor next = floats_at(tensor.next_memory, kept, device);
  const bool is_read = tensor.error_feedback && tensor.memory && !is_exact_;
  is_read ? next.copy_(floats_at(tensor.memory, kept, device)) : next.zero_();
}

/// Sends the rank's own values where the mean's estimates are largest, and NaNs where these are NaNs, which come first.
void CountSketch::send_exact(c10::Device device, const MapInput& tensor, const float* sketch, float* image) const {
  static thread_local at::Tensor estimates_memory, largest_memory;
  const LaunchScope scope(device);
  const rules::TopK taken = taken_of(tensor.shape);
  auto* const indices = reinterpret_cast<std::uint32_t*>(tensor.next_memory);
  const ScratchFloats estimates(device, taken.tile, estimates_memory), largest(device, taken.kept, largest_memory);
  estimate_sketch(device, sketch, sketch_of(tensor), taken.tile, estimates.data());
  find_largest(scope, device, estimates.data(), taken, largest.data(), indices);
  scope.kernels().gather_top(scope.queue(), tensor.values, indices, taken.tile, taken, image, nullptr);
  // 0 times a NaN is a NaN; estimates are never infinite
  floats_at(image, taken.kept, device).add_(floats_at(largest.data(), taken.kept, device), 0);
}

void CountSketch::reconstruct(c10::Device device, const MapInput& tensor, std::span<const float* const> images,
                              float* out, rules::Residual* next_residual, std::uint32_t* nonfinite) const {
  if (is_exact_) return take_exact(device, tensor, images[1], out, next_residual, nonfinite);
  const rules::CountSketch shape = sketch_of(tensor);
  if (!tensor.error_feedback) return take_estimates(device, tensor, images[0], out, nonfinite);
  static thread_local at::Tensor taken_memory;
  const LaunchScope scope(device);
  const ScratchFloats taken(device, shape.cells(), taken_memory);
  float *const owed = tensor.next_memory, *const velocity = tensor.momentum > 0 ? owed + shape.cells() : nullptr;
  const float* owed_now = images[0];
  if (velocity) {
    scope.kernels().correct_momentum(scope.queue(), tensor.momentum, 1.0F, images[0], velocity, shape.cells(),
                                     velocity);
    owed_now = velocity;
  }
  floats_at(owed, shape.cells(), device).add_(floats_at(owed_now, shape.cells(), device));
  take_estimates(device, tensor, owed, out, nonfinite);
  floats_at(taken.data(), shape.cells(), device).zero_();
  insert_sketch(device, {out}, tensor.shape.count(), shape, taken.data());
  scope.kernels().mask_momentum(scope.queue(), taken.data(), shape.cells(), owed);
  if (velocity) scope.kernels().mask_momentum(scope.queue(), taken.data(), shape.cells(), velocity);
}

void CountSketch::take_estimates(c10::Device device, const MapInput& tensor, const float* sketch, float* out,
                                 std::uint32_t* nonfinite) const {
  static thread_local at::Tensor largest_memory, indices_memory;
  const LaunchScope scope(device);
  const rules::TopK taken = taken_of(tensor.shape);
  const ScratchFloats largest(device, taken.kept, largest_memory),
      words(device, rules::index_words(taken, taken.tile), indices_memory);
  auto* const indices = reinterpret_cast<std::uint32_t*>(words.data());
  estimate_sketch(device, sketch, sketch_of(tensor), taken.tile, out);
  find_largest(scope, device, out, taken, largest.data(), indices);
  scope.kernels().scatter_top(scope.queue(), largest.data(), indices, taken.tile, taken, Store::assign, out, nonfinite);
}

void CountSketch::take_exact(c10::Device device, const MapInput& tensor, const float* image, float* out,
                             rules::Residual* next_residual, std::uint32_t* nonfinite) const {
  static thread_local at::Tensor own_memory;
  const LaunchScope scope(device);
  const rules::TopK taken = taken_of(tensor.shape);
  const auto* const indices = reinterpret_cast<const std::uint32_t*>(tensor.next_memory);
  if (next_residual) {  // before `out` is written, which may lie where the gradient is
    const ScratchFloats own(device, taken.kept, own_memory);
    scope.kernels().gather_top(scope.queue(), tensor.values, indices, taken.tile, taken, own.data(), next_residual);
  }
  scope.kernels().scatter_top(scope.queue(), image, indices, taken.tile, taken, Store::assign, out, nonfinite);
}

LinearMapPtr make_count_sketch(const CodecText& text) {
  constexpr auto kExpected =
      "sketch needs a number of cells for each value, up to 0.5, and may say which share of the values is taken from "
      "it, and that their exact values are sent too, as in sketch:0.1, sketch:0.1:0.01 or sketch:0.1:0.01:exact";
  std::size_t count = text.options.size();
  const bool is_exact = count > 1 && text.options[count - 1] == kExact;
  if (is_exact) --count;
  if (count == 0 || count > 2) text.refuse(kExpected);
  const double ratio = text.fraction(text.options[0], kExpected);
  if (ratio > 0.5) text.refuse(kExpected);
  const double taken = count == 2 ? text.fraction(text.options[1], kExpected) : ratio * CountSketch::kTakenOfCells;
  return std::make_shared<CountSketch>(ratio, taken, is_exact);
}

}  // namespace octavo
