// SPDX-License-Identifier: Apache-2.0
#include "octavo/codec/coding.h"

#include <algorithm>

#include "octavo/device/dispatch.h"

namespace octavo {

namespace {

/// Elements that a thread takes at least: less is not worth waking it.
constexpr std::uint64_t kGrainValues = 1U << 15;

/// Calls body(first element, elements) over parts of whole blocks.
template <class Body>
void for_block_parts(c10::Device device, Format format, std::uint64_t count, Body body) {
  const auto grain = static_cast<std::int64_t>(std::max<std::uint64_t>(1, kGrainValues / format.block));
  for_parts(device, static_cast<std::int64_t>(format.blocks(count)), grain, [&](std::int64_t from, std::int64_t to) {
    const std::uint64_t first = static_cast<std::uint64_t>(from) * format.block;
    const std::uint64_t last = std::min(static_cast<std::uint64_t>(to) * format.block, count);
    body(first, last - first);
  });
}

}  // namespace

void encode(c10::Device device, Format format, const EncodeInput& wanted, std::uint64_t count, Payload payload,
            rules::Residual* next_residual) {
  const LaunchScope scope(device);
  EncodeInput input = wanted;
  input.stochastic = format.stochastic;
  EncodeKernel* const kernel = scope.kernels().of(format.codec).encode;
  for_block_parts(device, format, count, [&](std::uint64_t first, std::uint64_t part) {
    kernel(scope.queue(), input.from(first), part, format.block, format.from(payload, first),
           next_residual ? next_residual + first : nullptr);
  });
}

void decode(c10::Device device, Format format, Payload payload, std::uint64_t count, Store store, float* out,
            std::uint32_t* nonfinite) {
  const LaunchScope scope(device);
  DecodeKernel* const kernel = scope.kernels().of(format.codec).decode;
  for_block_parts(device, format, count, [&](std::uint64_t first, std::uint64_t part) {
    kernel(scope.queue(), format.from(payload, first), part, format.block, store, out + first, nonfinite);
  });
}

}  // namespace octavo
