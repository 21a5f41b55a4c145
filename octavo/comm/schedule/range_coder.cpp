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
  const std::uint64_t count = range.count;
  rules::Residual* next = tensor.owner ? tensor.owner->next(count) : nullptr;
  const std::uint64_t size = part_size(tensor.up, tensor.down);
  auto* sum = reinterpret_cast<float*>(reserve(sum_, std::min(size, count) * sizeof(float)));
  for (std::uint64_t first = 0; first < count; first += size) {
    const Range part{first, std::min(size, count - first)};
    take_own(tensor, range, part, sum);
    for (std::uint8_t* bytes : payloads) {
      decode(kCpu, tensor.up, tensor.up.from(tensor.up.payload(bytes, count), first), part.count, Store::add, sum);
    }
    EncodeInput input{sum};
    input.gradient_weight = result_weight;
    if (tensor.owner && tensor.owner->now()) input.residual = tensor.owner->now() + first;
    encode(kCpu, tensor.down, input, part.count, tensor.down.from(tensor.down.payload(out, count), first),
           next ? next + first : nullptr);
  }
}

/// What this rank has to say of its own range does not travel, and is taken as it is; but a vote is a sign everywhere.
void RangeCoder::take_own(const Contribution& tensor, Range range, Range part, float* sum) {
  const EncodeInput input = tensor.input(range.first + part.first);
  if (tensor.up.codec == Codec::ballot) {
    std::uint8_t* bytes = reserve(own_votes_, tensor.up.payload_bytes(part.count));
    encode(kCpu, tensor.up, input, part.count, tensor.up.payload(bytes, part.count), nullptr);
    decode(kCpu, tensor.up, tensor.up.payload(bytes, part.count), part.count, Store::assign, sum);
  } else {  // the codes of float32 are the values
    const Format values = default_format(Codec::fp32);
    encode(kCpu, values, input, part.count, values.payload(reinterpret_cast<std::uint8_t*>(sum), part.count), nullptr);
  }
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
