// SPDX-License-Identifier: Apache-2.0
#include "octavo/comm/schedule/range_coder.h"

#include <algorithm>
#include <numeric>

#include "octavo/codec/coding.h"
#include "octavo/device/dispatch.h"
#include "octavo/device/scratch.h"

namespace octavo {

namespace {

/// What a tensor's rounding key is used for: the two residuals of a rank draw different bits.
enum Rounding : std::uint64_t { kOfWorker, kOfOwner };

}  // namespace

/// How much is added up at a time: whole blocks of both formats, on the CPU some 64 Ki elements, whose sum stays in L2;
/// elsewhere as much as is worth the launch of a kernel.
std::uint64_t RangeCoder::part_size(Format up, Format down) const {
  const std::uint64_t wanted = device_.is_cpu() ? 1U << 16 : 1U << 22;
  const std::uint64_t block = std::lcm(up.block, down.block);
  return block * std::max<std::uint64_t>(1, wanted / block);
}

void RangeCoder::begin() {
  reserve_on_host(nonfinite_, sizeof(std::uint32_t), device_);
  *nonfinite() = 0;
}

bool RangeCoder::is_finite() const { return *nonfinite() == 0; }

void RangeCoder::encode_up(const Contribution& tensor, Range range, std::uint8_t* out) const {
  EncodeInput input = tensor.input(range.first);
  rules::Residual* next = nullptr;
  if (tensor.worker) {
    const Sent sent = sent_part(tensor.count, rank_, world_size_);
    const std::uint64_t at = sent.index(range.first);
    if (const auto* now = tensor.worker->now(device_)) input.residual = now + at;
    next = tensor.worker->next(sent.count, device_) + at;
    input.rounding_key = rules::derive_key(tensor.rounding_key, kOfWorker);
  }
  encode(device_, tensor.up, input, range.count, tensor.up.payload(out, range.count), next);
}

void RangeCoder::reduce(const Contribution& tensor, Range range, const std::vector<std::uint8_t*>& payloads,
                        std::uint8_t* out, float result_weight) {
  rules::Residual* next = tensor.owner ? tensor.owner->next(range.count, device_) : nullptr;
  const std::uint64_t size = part_size(tensor.up, tensor.down);
  for (std::uint64_t first = 0; first < range.count; first += size) {
    const Range part{first, std::min(size, range.count - first)};
    EncodeInput input =
        traits(tensor.up.codec).keeps_magnitude ? tensor.input(range.first + first) : own_votes(tensor, range, part);
    input.others = sum_of_others(tensor, range, part, payloads);
    input.sum_weight = result_weight;
    const rules::Residual* now = tensor.owner ? tensor.owner->now(device_) : nullptr;
    if (now) input.residual = now + first;
    input.rounding_key = rules::derive_key(tensor.rounding_key, kOfOwner);
    encode(device_, tensor.down, input, part.count, tensor.down.from(tensor.down.payload(out, range.count), first),
           next ? next + first : nullptr);
  }
}

/// This rank's contribution to its own range does not travel and is taken as it is; but a vote is a sign everywhere.
EncodeInput RangeCoder::own_votes(const Contribution& tensor, Range range, Range part) {
  const Payload payload =
      tensor.up.payload(reserve_on_device(votes_, tensor.up.payload_bytes(part.count), device_), part.count);
  auto* signs = reinterpret_cast<float*>(reserve_on_device(signs_, part.count * sizeof(float), device_));
  encode(device_, tensor.up, tensor.input(range.first + part.first), part.count, payload, nullptr);
  decode(device_, tensor.up, payload, part.count, Store::assign, signs);
  return {signs};
}

const float* RangeCoder::sum_of_others(const Contribution& tensor, Range range, Range part,
                                       const std::vector<std::uint8_t*>& payloads) {
  auto* sum = reinterpret_cast<float*>(reserve_on_device(sum_, part.count * sizeof(float), device_));
  for (std::uint8_t* bytes : payloads) {
    const Store how = bytes == payloads.front() ? Store::assign : Store::add;
    const Payload payload = tensor.up.from(tensor.up.payload(bytes, range.count), part.first);
    decode(device_, tensor.up, payload, part.count, how, sum);
  }
  return payloads.empty() ? nullptr : sum;
}

void RangeCoder::decode_down(const Contribution& tensor, Range range, std::uint8_t* payload) const {
  decode(device_, tensor.down, tensor.down.payload(payload, range.count), range.count, Store::uncached,
         tensor.values + range.first, nonfinite());
}

void RangeCoder::combine(const Contribution& tensor) {
  const Format exact = default_format(BlockCodec::fp32);
  const std::uint64_t size = part_size(exact, exact);
  for (std::uint64_t first = 0; first < tensor.count; first += size) {
    const std::uint64_t count = std::min(size, tensor.count - first);
    const Payload payload = exact.payload(reserve_on_device(exact_, exact.payload_bytes(count), device_), count);
    encode(device_, exact, tensor.input(first), count, payload, nullptr);
    decode(device_, exact, payload, count, Store::assign, tensor.values + first, nonfinite());
  }
}

}  // namespace octavo
