// SPDX-License-Identifier: Apache-2.0
#include "octavo/codec/top_k.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>

#include "octavo/device/dispatch.h"
#include "octavo/device/scratch.h"

namespace octavo {

namespace {

constexpr std::uint64_t kLargestTile = 1U << 20;

std::string text_of(const std::string& share, BlockCodec values) {
  const std::string text = "topk:" + share;
  return values == BlockCodec::fp32 ? text : text + ":" + plan_name(values);
}

}  // namespace

void encode_largest(c10::Device device, const EncodeInput& input, std::uint64_t count, const LargestPlace& to,
                    const Codec& values_codec, rules::Residual* next_residual) {
  static thread_local at::Tensor scratch_memory, values_memory, sent_memory;
  const LaunchScope scope(device);
  const KernelTable& kernels = scope.kernels();
  const auto [shape, payload, indices] = to;
  const std::uint64_t kept = payload.part.count;
  const ScratchFloats scratch(device, top_k_scratch(count, shape), scratch_memory), values(device, kept, values_memory);
  kernels.select_top(scope.queue(), input, count, shape, scratch.data(), values.data(), indices, next_residual);
  values_codec.encode(device, {values.data()}, payload, nullptr);
  if (!next_residual) return;
  const ScratchFloats sent(device, kept, sent_memory);
  values_codec.decode(device, payload, Store::assign, sent.data(), nullptr);
  kernels.settle_top(scope.queue(), input, count, shape, values.data(), sent.data(), indices, next_residual);
}

void decode_largest(c10::Device device, const LargestPlace& from, std::uint64_t count, const Codec& values_codec,
                    Store store, float* out, std::uint32_t* nonfinite) {
  static thread_local at::Tensor sent_memory;
  const LaunchScope scope(device);
  const auto [shape, payload, indices] = from;
  const ScratchFloats sent(device, payload.part.count, sent_memory);
  values_codec.decode(device, payload, Store::assign, sent.data(), nullptr);
  scope.kernels().scatter_top(scope.queue(), sent.data(), indices, count, shape, store, out, nonfinite);
}

TopK::TopK(double ratio, BlockCodec values)
    : Codec(text_of(shortest(ratio), values), {.leaves_unsent = true}), ratio_(ratio), values_(values) {}

TopK::TopK(std::uint64_t kept, std::uint64_t tile, BlockCodec values)
    : Codec(text_of(std::to_string(kept) + "/" + std::to_string(tile), values),
            {.granule = tile, .leaves_unsent = true}),
      tiles_{tile, kept},
      values_(values, kept) {}

rules::TopK TopK::shape(std::uint64_t count) const {
  if (ratio_ == 0 || count == 0) return ratio_ == 0 ? tiles_ : rules::TopK{1, 1};
  const double kept = std::ceil(ratio_ * static_cast<double>(count));
  return {count, std::clamp<std::uint64_t>(static_cast<std::uint64_t>(kept), 1, count)};
}

std::uint64_t TopK::payload_bytes(std::uint64_t count) const {
  const rules::TopK of_all = shape(count);
  return values_.payload_bytes(of_all.kept_in(count)) + sizeof(std::uint32_t) * index_words(of_all, count);
}

std::vector<CodecPtr> TopK::warm_up() const {
  std::vector<CodecPtr> denser;
  for (double ratio = 0.25; ratio > ratio_ && ratio_ > 0; ratio /= 4) {
    denser.push_back(std::make_shared<TopK>(ratio, values_.codec()));
  }
  for (std::uint64_t kept = tiles_.tile / 4; kept > tiles_.kept; kept /= 4) {
    denser.push_back(std::make_shared<TopK>((kept + 7) / 8 * 8, tiles_.tile, values_.codec()));
  }
  return denser;
}

LargestPlace TopK::place(const PayloadPart& part) const {
  const rules::TopK of_all = shape(part.count);
  const std::uint64_t kept = of_all.kept_in(part.count), before = of_all.kept_in(part.part.first);
  auto* const indices = reinterpret_cast<std::uint32_t*>(part.payload + values_.payload_bytes(kept));
  return {of_all,
          {part.payload, kept, {before, of_all.kept_in(part.part.first + part.part.count) - before}},
          indices + index_words(of_all, part.part.first)};
}

void TopK::encode(c10::Device device, const EncodeInput& input, const PayloadPart& to,
                  rules::Residual* next_residual) const {
  for_each_part(device, traits().granule, to, [&](const PayloadPart& part, std::uint64_t first) {
    encode_largest(device, input.from(first), part.part.count, place(part), values_,
                   next_residual ? next_residual + first : nullptr);
  });
}

void TopK::decode(c10::Device device, const PayloadPart& from, Store store, float* out,
                  std::uint32_t* nonfinite) const {
  for_each_part(device, traits().granule, from, [&](const PayloadPart& part, std::uint64_t first) {
    decode_largest(device, place(part), part.part.count, values_, store, out + first, nonfinite);
  });
}

CodecPtr make_top_k(const CodecText& text) {
  constexpr auto kExpected = "topk needs a share of the values, as in topk:0.01, or tiles, as in topk:64/4096";
  constexpr auto kShare = "topk keeps a share of the values above 0 and at most 1, as in topk:0.01";
  constexpr auto kTiles = "a tile is a multiple of 64 up to 1048576, of which a multiple of 8 values is kept";
  if (text.options.empty() || text.options.size() > 2) text.refuse(kExpected);
  const BlockCodec values = text.options.size() == 2 ? values_codec(text, text.options[1]) : BlockCodec::fp32;
  const std::string_view share = text.options[0];
  const std::size_t slash = share.find('/');
  if (slash == std::string_view::npos) return std::make_shared<TopK>(text.fraction(share, kShare), values);
  const std::uint64_t tile = text.whole_number(share.substr(slash + 1), 64, kLargestTile, kTiles);
  const std::uint64_t kept = text.whole_number(share.substr(0, slash), 8, tile, kTiles);
  if (tile % 64 != 0 || kept % 8 != 0) text.refuse(kTiles);
  return std::make_shared<TopK>(kept, tile, values);
}

}  // namespace octavo
