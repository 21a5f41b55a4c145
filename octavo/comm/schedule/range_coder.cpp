// SPDX-License-Identifier: Apache-2.0
#include "octavo/comm/schedule/range_coder.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <numeric>

#include "octavo/codec/coding.h"

namespace octavo {

namespace {

const c10::Device kCpu = c10::kCPU;

/// How much is added up at a time: whole blocks of both formats, some 64 Ki elements, whose sum stays in L2.
std::uint64_t part_size(Format up, Format down) {
  constexpr std::uint64_t kPart = 1U << 16;
  const std::uint64_t block = std::lcm(up.block, down.block);
  return block * std::max<std::uint64_t>(1, kPart / block);
}

}  // namespace

void RangeCoder::encode_up(const Contribution& tensor, Range range, std::uint8_t* out) const {
  EncodeInput input = tensor.input(range.first);
  rules::Residual* next = nullptr;
  if (tensor.worker) {
    const Sent sent = sent_part(tensor.count, rank_, world_size_);
    const std::uint64_t at = sent.index(range.first);
    if (tensor.worker->now()) input.residual = tensor.worker->now() + at;
    next = tensor.worker->next(sent.count) + at;
  }
  encode(kCpu, tensor.up, input, range.count, tensor.up.payload(out, range.count), next);
}

void RangeCoder::reduce(const Contribution& tensor, Range range, const std::vector<std::uint8_t*>& payloads,
                        std::uint8_t* out, float result_weight) {
  rules::Residual* next = tensor.owner ? tensor.owner->next(range.count) : nullptr;
  const std::uint64_t size = part_size(tensor.up, tensor.down);
  for (std::uint64_t first = 0; first < range.count; first += size) {
    const Range part{first, std::min(size, range.count - first)};
    EncodeInput input =
        tensor.up.codec == Codec::ballot ? own_votes(tensor, range, part) : tensor.input(range.first + first);
    input.others = sum_of_others(tensor, range, part, payloads);
    input.sum_weight = result_weight;
    if (tensor.owner && tensor.owner->now()) input.residual = tensor.owner->now() + first;
    encode(kCpu, tensor.down, input, part.count, tensor.down.from(tensor.down.payload(out, range.count), first),
           next ? next + first : nullptr);
  }
}

/// What this rank has to say of its own range does not travel, and is taken as it is; but a vote is a sign everywhere.
EncodeInput RangeCoder::own_votes(const Contribution& tensor, Range range, Range part) {
  const Payload payload = tensor.up.payload(reserve(votes_, tensor.up.payload_bytes(part.count)), part.count);
  auto* signs = reinterpret_cast<float*>(reserve(signs_, part.count * sizeof(float)));
  encode(kCpu, tensor.up, tensor.input(range.first + part.first), part.count, payload, nullptr);
  decode(kCpu, tensor.up, payload, part.count, Store::assign, signs);
  return {signs};
}

const float* RangeCoder::sum_of_others(const Contribution& tensor, Range range, Range part,
                                       const std::vector<std::uint8_t*>& payloads) {
  auto* sum = reinterpret_cast<float*>(reserve(sum_, part.count * sizeof(float)));
  for (std::uint8_t* bytes : payloads) {
    const Store how = bytes == payloads.front() ? Store::assign : Store::add;
    const Payload payload = tensor.up.from(tensor.up.payload(bytes, range.count), part.first);
    decode(kCpu, tensor.up, payload, part.count, how, sum);
  }
  return payloads.empty() ? nullptr : sum;
}

bool RangeCoder::decode_down(const Contribution& tensor, Range range, std::uint8_t* payload) const {
  const std::uint64_t count = range.count;
  decode(kCpu, tensor.down, tensor.down.payload(payload, count), count, Store::stream, tensor.values + range.first);
  return payload_is_finite(tensor.down, payload, count);
}

std::uint8_t* reserve(at::Tensor& buffer, std::uint64_t bytes) {
  const auto size = static_cast<std::int64_t>(bytes);
  if (!buffer.defined() || buffer.numel() < size) buffer = at::empty({size}, at::kByte);
  return buffer.mutable_data_ptr<std::uint8_t>();
}

}  // namespace octavo
