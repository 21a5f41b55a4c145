// SPDX-License-Identifier: Apache-2.0
#include "octavo/comm/schedule/gradient_power.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "octavo/comm/schedule/float_part.h"
#include "octavo/device/dispatch.h"
#include "octavo/device/scratch.h"
#include "octavo/kernels/round_up.h"
#include "octavo/rules/gradient_power.h"

namespace octavo {

namespace {

using rules::kPowerChunk;

/// From this size on only every 32nd chunk is read: a scale needs no more, and memory is slow.
constexpr std::uint64_t kSampledCount = 1U << 16;
constexpr std::uint64_t kSampledStride = 32 * kPowerChunk;
/// The least number of chunks for a thread.
constexpr std::int64_t kGrainChunks = 256;

std::uint64_t stride_of(const Contribution& tensor) {
  return tensor.count < kSampledCount || tensor.memory->needs_whole_power() ? kPowerChunk : kSampledStride;
}

std::uint64_t chunks_of(const Contribution& tensor, std::uint64_t stride) {
  std::uint64_t chunks = 0;
  tensor.for_each_run([&](std::uint64_t, std::uint64_t count) { chunks += divide_up(count, stride); });
  return chunks;
}

/// Measures the chunks at every multiple of `stride` in a run. Where gradients are of another dtype, it converts some
/// chunks at a time to floats that stay in the cache.
void measure_run(const LaunchScope& scope, c10::Device device, const Contribution& tensor, Range run,
                 std::uint64_t stride, float* powers) {
  const auto enqueue = [&](const float* values, std::uint64_t count, std::uint64_t step, float* out) {
    scope.kernels().chunk_powers(scope.queue(), values, count, step, out);
  };
  if (tensor.dtype == at::kFloat) {
    return enqueue(static_cast<const float*>(tensor.at(run.first)), run.count, stride, powers);
  }
  constexpr std::uint64_t kAtOnce = 256;
  static thread_local at::Tensor kept_by_thread;
  const std::uint64_t whole = run.count / stride + (run.count % stride >= kPowerChunk ? 1 : 0);
  for (std::uint64_t chunk = 0; chunk < divide_up(run.count, stride); chunk += kAtOnce) {
    const std::uint64_t rows = std::min(kAtOnce, whole - std::min(chunk, whole));
    const bool ends = chunk + rows < divide_up(run.count, stride) && rows < kAtOnce;
    const std::uint64_t rest = ends ? run.count % stride : 0;  // of the last chunk, which is shorter
    const ScratchFloats floats(device, rows * kPowerChunk + rest, kept_by_thread);
    const std::uint64_t first = run.first + chunk * stride;
    if (rows > 0) load_rows(device, tensor, first, rows, kPowerChunk, stride, floats.data());
    if (rest > 0) load_rows(device, tensor, first + rows * stride, 1, rest, stride, floats.data() + rows * kPowerChunk);
    enqueue(floats.data(), rows * kPowerChunk + rest, kPowerChunk, powers + chunk);
  }
}

void measure(const Contribution& tensor, std::uint64_t stride, c10::Device device, float* powers) {
  const LaunchScope scope(device);
  tensor.for_each_run([&](std::uint64_t start, std::uint64_t count) {
    const auto chunks = static_cast<std::int64_t>(divide_up(count, stride));
    for_parts(device, chunks, kGrainChunks, [&](std::int64_t from, std::int64_t to) {
      const std::uint64_t first = static_cast<std::uint64_t>(from) * stride;
      const std::uint64_t last = std::min(static_cast<std::uint64_t>(to) * stride, count);
      measure_run(scope, device, tensor, {start + first, last - first}, stride, powers + from);
    });
    powers += chunks;
  });
}

double sum_of(std::span<const float> powers) {
  double sum = 0;
  for (const float power : powers) sum += static_cast<double>(power);
  return sum;
}

/// Returns a power that is 0 only where all that it was measured of is.
float power_of(double sum, std::uint64_t count) {
  return sum == 0 ? 0.0F : std::max(static_cast<float>(sum / static_cast<double>(count)), rules::kLeastPower);
}

float mean(std::span<const float> chunks, const Contribution& tensor, std::uint64_t stride) {
  std::uint64_t taken = 0;
  tensor.for_each_run([&](std::uint64_t, std::uint64_t count) {
    const std::uint64_t before_last = divide_up(count, stride) - 1;
    taken += before_last * kPowerChunk + std::min(kPowerChunk, count - before_last * stride);
  });
  return power_of(sum_of(chunks), taken);
}

/// Returns the power of a tensor from all of its chunks, for a tensor whose sample is zero.
float exact_power(const Contribution& tensor, c10::Device device, at::Tensor& buffer) {
  const std::uint64_t chunks = chunks_of(tensor, kPowerChunk);
  auto* powers = reserve_on_host<float>(buffer, chunks, device);
  measure(tensor, kPowerChunk, device, powers);
  wait_for_current_stream(device);
  return mean({powers, chunks}, tensor, kPowerChunk);
}

}  // namespace

std::vector<float> gradient_powers(std::span<const Contribution> tensors, c10::Device device, at::Tensor& buffer) {
  std::uint64_t chunks = 0;
  for (const Contribution& tensor : tensors) chunks += chunks_of(tensor, stride_of(tensor));
  auto* next = reserve_on_host<float>(buffer, chunks, device);
  std::vector<std::span<const float>> sampled;
  for (const Contribution& tensor : tensors) {
    measure(tensor, stride_of(tensor), device, next);
    sampled.emplace_back(next, chunks_of(tensor, stride_of(tensor)));
    next += sampled.back().size();
  }
  wait_for_current_stream(device);
  std::vector<float> powers;
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    powers.push_back(mean(sampled[t], tensors[t], stride_of(tensors[t])));
  }
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    const bool was_sampled = stride_of(tensors[t]) != kPowerChunk;
    if (powers[t] == 0 && was_sampled) powers[t] = exact_power(tensors[t], device, buffer);
    if (tensors[t].power) powers[t] = *tensors[t].power;
  }
  return powers;
}

at::Tensor summands(std::span<const float> powers) {
  at::Tensor own = at::empty({static_cast<std::int64_t>(powers.size())}, at::kDouble);
  std::copy(powers.begin(), powers.end(), own.mutable_data_ptr<double>());
  return own;
}

std::vector<float> mean_powers(const at::Tensor& sums, int world_size) {
  const std::span all(sums.const_data_ptr<double>(), static_cast<std::size_t>(sums.numel()));
  std::vector<float> powers;
  for (const double sum : all) powers.push_back(power_of(sum, static_cast<std::uint64_t>(world_size)));
  return powers;
}

float mean_power(std::span<const float> powers) { return power_of(sum_of(powers), powers.size()); }

}  // namespace octavo
