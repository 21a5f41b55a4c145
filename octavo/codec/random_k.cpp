// SPDX-License-Identifier: Apache-2.0
#include "octavo/codec/random_k.h"

#include <cmath>
#include <memory>
#include <string>

#include "octavo/device/dispatch.h"
#include "octavo/device/scratch.h"

namespace octavo {

namespace {

constexpr std::string_view kUnbiased = "unbiased";

std::string text_of(std::uint64_t stride, bool is_unbiased, BlockCodec values) {
  std::string text = "randomk:1/" + std::to_string(stride);
  if (is_unbiased) text += ":" + std::string(kUnbiased);
  return values == BlockCodec::fp32 ? text : text + ":" + plan_name(values);
}

}  // namespace

RandomK::RandomK(std::uint64_t stride, bool is_unbiased, BlockCodec values)
    : Codec(text_of(stride, is_unbiased, values),
            {.granule = stride * block_coding(values).traits().granule,
             .leaves_error = !is_unbiased,
             .learnt_share = is_unbiased ? 1.0F / static_cast<float>(stride) : 1.0F,
             .leaves_unsent = true,
             .draws_places = true}),
      stride_(stride),
      unweighted_(is_unbiased ? std::make_shared<RandomK>(stride, false, values) : nullptr),
      values_(values) {}

std::uint64_t RandomK::payload_bytes(std::uint64_t count) const { return values_.payload_bytes(strides(count)); }

std::vector<CodecPtr> RandomK::warm_up() const {
  std::vector<CodecPtr> denser;
  for (std::uint64_t stride = 4; stride < stride_; stride *= 4) {
    denser.push_back(std::make_shared<RandomK>(stride, is_unbiased(), values_.codec()));
  }
  return denser;
}

rules::RandomK RandomK::shape(const PayloadPart& part) const {
  return {part.key, stride_, part.part.first / stride_, is_unbiased()};
}

PayloadPart RandomK::kept(const PayloadPart& part) const {
  return {part.payload, strides(part.count), {part.part.first / stride_, strides(part.part.count)}};
}

void RandomK::encode(c10::Device device, const EncodeInput& input, const PayloadPart& to,
                     rules::Residual* next_residual) const {
  for_each_part(device, traits().granule, to, [&](const PayloadPart& part, std::uint64_t first) {
    static thread_local at::Tensor values_memory, sent_memory;
    const LaunchScope scope(device);
    const PayloadPart payload = kept(part);
    const EncodeInput own = input.from(first);
    const ScratchFloats values(device, payload.part.count, values_memory);
    scope.kernels().select_random(scope.queue(), own, part.part.count, shape(part), values.data());
    values_.encode(device, {values.data()}, payload, nullptr);
    if (!next_residual) return;
    const ScratchFloats sent(device, payload.part.count, sent_memory);
    values_.decode(device, payload, Store::assign, sent.data(), nullptr);
    scope.kernels().settle_random(scope.queue(), own, part.part.count, shape(part), sent.data(), next_residual + first);
  });
}

void RandomK::decode(c10::Device device, const PayloadPart& from, Store store, float* out,
                     std::uint32_t* nonfinite) const {
  for_each_part(device, traits().granule, from, [&](const PayloadPart& part, std::uint64_t first) {
    static thread_local at::Tensor sent_memory;
    const LaunchScope scope(device);
    const PayloadPart payload = kept(part);
    const ScratchFloats sent(device, payload.part.count, sent_memory);
    values_.decode(device, payload, Store::assign, sent.data(), nullptr);
    scope.kernels().scatter_random(scope.queue(), sent.data(), part.part.count, shape(part), store, out + first,
                                   nonfinite);
  });
}

CodecPtr make_random_k(const CodecText& text) {
  constexpr auto kExpected =
      "randomk needs a share of the values from 0.000001 to 0.5, as in randomk:0.01 or randomk:1/100";
  if (text.options.empty()) text.refuse(kExpected);
  const std::string_view share = text.options[0];
  constexpr std::uint64_t kLargestStride = 1'000'000;
  const double ratio = share.starts_with("1/")
                           ? 1.0 / static_cast<double>(text.whole_number(share.substr(2), 2, kLargestStride, kExpected))
                           : text.fraction(share, kExpected);
  const auto stride = static_cast<std::uint64_t>(std::llround(1 / ratio));
  if (ratio > 0.5 || stride > kLargestStride) text.refuse(kExpected);
  std::size_t next = 1;
  const bool is_unbiased = text.options.size() > next && text.options[next] == kUnbiased;
  if (is_unbiased) ++next;
  const BlockCodec values = text.options.size() > next ? values_codec(text, text.options[next++]) : BlockCodec::fp32;
  if (text.options.size() > next) text.refuse("after the codec of the values nothing follows");
  return std::make_shared<RandomK>(stride, is_unbiased, values);
}

}  // namespace octavo
