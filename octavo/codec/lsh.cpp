// SPDX-License-Identifier: Apache-2.0
#include "octavo/codec/lsh.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <numbers>
#include <string>
#include <utility>

#include "octavo/codec/registry.h"
#include "octavo/device/dispatch.h"
#include "octavo/device/scratch.h"
#include "octavo/kernels/round_up.h"

namespace octavo {

namespace {

using rules::kLshBits;
using rules::kLshTile;

constexpr std::uint64_t kWordBytes = sizeof(std::uint32_t);
constexpr std::uint32_t kReusedTile = 0, kSentTile = 1;
constexpr std::uint64_t kSketches = 2 * kLshBits;  // floats of a tile: for estimates, then for differences

std::string lsh_text(double bits, const Codec& inner) {
  return "lsh:" + (bits == Lsh::kBits ? "" : shortest(bits) + ":") + inner.text();
}

CodecTraits lsh_traits(const Codec& inner) {
  CodecTraits traits = inner.traits();
  traits.granule = kLshTile;
  traits.leaves_error = true;
  traits.packs = true;
  traits.needs_estimate = true;
  return traits;
}

/// Returns the limit for a share of differing bits. Two vectors of one size whose hashes differ in this share are at a
/// known angle, and their squared distance follows from it.
rules::LshLimit lsh_limit(double bits) {
  const double half_angle = std::numbers::pi * bits / 2;
  return {bits, 4 * std::sin(half_angle) * std::sin(half_angle)};
}

}  // namespace

Lsh::Lsh(double bits, CodecPtr inner)
    : Codec(lsh_text(bits, *inner), lsh_traits(*inner)),
      bits_(bits),
      limit_(lsh_limit(bits)),
      inner_(std::move(inner)) {}

std::uint64_t Lsh::tile_bytes(std::uint64_t count) const {
  return kWordBytes + whole_words(inner_->payload_bytes(count));
}

std::uint64_t Lsh::payload_bytes(std::uint64_t count) const {
  const std::uint64_t rest = count % kLshTile;
  return count / kLshTile * tile_bytes(kLshTile) + (rest > 0 ? tile_bytes(rest) : 0);
}

std::vector<CodecPtr> Lsh::warm_up() const {
  std::vector<CodecPtr> all;
  for (const CodecPtr& denser : inner_->warm_up()) all.push_back(std::make_shared<Lsh>(bits_, denser));
  return all;
}

template <class Body>
void Lsh::for_each_tile(const PayloadPart& part, Body body) const {
  for (std::uint64_t first = 0; first < part.part.count; first += kLshTile) {
    const std::uint64_t number = (part.part.first + first) / kLshTile,
                        size = std::min(kLshTile, part.part.count - first);
    std::uint8_t* const word = part.payload + number * tile_bytes(kLshTile);
    body(Tile{word, {word + kWordBytes, size, {0, size}, rules::derive_key(part.key, number)}, first});
  }
}

/// Each step and tile draws another hash. Otherwise changes that one hash does not see would never be seen.
void Lsh::sketch(c10::Device device, const EncodeInput& input, const PayloadPart& part, float* cells) const {
  const LaunchScope scope(device);
  const std::uint64_t count = divide_up(part.part.count, kLshTile) * kSketches;
  if (device.is_cpu()) {
    std::fill_n(cells, count, 0.0F);
  } else {
    floats_at(cells, count, device).zero_();
  }
  for_each_tile(part, [&](const Tile& tile) {
    const rules::CountSketch shape = rules::lsh_sketch(tile.inner.key);
    const rules::SketchBlocks all = {0, shape.blocks()};
    EncodeInput difference = input.from(tile.first);
    difference.first = 0;
    const auto insert = [&](const EncodeInput& values) {
      scope.kernels().insert_sketch(scope.queue(), values, tile.inner.count, shape, all, cells);
      cells += kLshBits;
    };
    insert({difference.estimate});
    insert(difference);
  });
}

void Lsh::encode(c10::Device device, const EncodeInput& input, const PayloadPart& to,
                 rules::Residual* next_residual) const {
  for_each_part(device, kLshTile, to, [&](const PayloadPart& part, std::uint64_t first) {
    static thread_local at::Tensor memory;
    const EncodeInput own = input.from(first);
    const bool compares = own.estimate && !next_residual;
    const std::uint64_t tiles = divide_up(part.part.count, kLshTile);
    const ScratchFloats sketches(device, compares ? tiles * kSketches : 0, memory);
    const float* cells = sketches.data();
    at::Tensor on_host;
    if (compares) sketch(device, own, part, sketches.data());
    if (compares && !device.is_cpu()) {
      on_host = floats_at(cells, tiles * kSketches, device).to(at::kCPU);
      cells = on_host.const_data_ptr<float>();
    }
    for_each_tile(part, [&](const Tile& tile) {
      const bool is_reused = compares && rules::has_hardly_changed(cells, cells + kLshBits, limit_);
      cells += compares ? kSketches : 0;
      write_word(tile.word, is_reused ? kReusedTile : kSentTile, device);
      if (is_reused) return;
      inner_->encode(device, own.from(tile.first), tile.inner,
                     next_residual ? next_residual + first + tile.first : nullptr);
    });
  });
}

void Lsh::decode(c10::Device device, const PayloadPart& from, Store store, float* out, std::uint32_t* nonfinite) const {
  for_each_part(device, kLshTile, from, [&](const PayloadPart& part, std::uint64_t first) {
    for_each_tile(part, [&](const Tile& tile) {
      float* const values = out + first + tile.first;
      if (read_word(tile.word, device) != kReusedTile) {
        inner_->decode(device, tile.inner, store, values, nonfinite);
      } else if (store != Store::add && device.is_cpu()) {
        std::fill_n(values, tile.inner.count, 0.0F);
      } else if (store != Store::add) {
        floats_at(values, tile.inner.count, device).zero_();
      }
    });
  });
}

std::uint64_t Lsh::reused(const std::uint8_t* payload, std::uint64_t count) const {
  std::uint64_t values = 0;
  for_each_tile({const_cast<std::uint8_t*>(payload), count, {0, count}}, [&](const Tile& tile) {  // only read
    if (read_word(tile.word, c10::kCPU) == kReusedTile) values += tile.inner.count;
  });
  return values;
}

std::uint64_t Lsh::pack(const std::uint8_t* payload, std::uint64_t count, std::uint8_t* packed) const {
  std::uint8_t* next = packed;
  for_each_tile({const_cast<std::uint8_t*>(payload), count, {0, count}}, [&](const Tile& tile) {  // only read
    const std::uint32_t word = read_word(tile.word, c10::kCPU) == kReusedTile ? kReusedTile : kSentTile;
    write_word(next, word, c10::kCPU);
    next += kWordBytes;
    if (word == kReusedTile) return;
    const std::uint64_t bytes = inner_->pack(tile.inner.payload, tile.inner.count, next);
    std::fill(next + bytes, next + whole_words(bytes), std::uint8_t{0});
    next += whole_words(bytes);
  });
  return static_cast<std::uint64_t>(next - packed);
}

std::optional<std::uint64_t> Lsh::unpack(std::span<const std::uint8_t> packed, std::uint64_t count,
                                         std::uint8_t* payload) const {
  std::span<const std::uint8_t> rest = packed;
  bool fits = true;
  for_each_tile({payload, count, {0, count}}, [&](const Tile& tile) {
    fits = fits && rest.size() >= kWordBytes;
    if (!fits) return;
    const std::uint32_t word = read_word(rest.data(), c10::kCPU);
    rest = rest.subspan(kWordBytes);
    write_word(tile.word, word, c10::kCPU);
    if (word == kReusedTile) return;
    const auto bytes = word == kSentTile ? inner_->unpack(rest, tile.inner.count, tile.inner.payload) : std::nullopt;
    fits = bytes && whole_words(*bytes) <= rest.size();
    if (fits) rest = rest.subspan(whole_words(*bytes));
  });
  if (!fits) return std::nullopt;
  return packed.size() - rest.size();
}

CodecPtr make_lsh(const CodecText& text) {
  constexpr auto kExpected =
      "lsh needs a codec, and may say before it which share of the bits of a hash may differ, above 0 and at most 0.5, "
      "as in lsh:int4 or lsh:0.4:topk:0.01";
  if (text.options.empty()) text.refuse(kExpected);
  const bool says_bits =
      !text.options[0].empty() && std::string_view("0123456789.-+").find(text.options[0][0]) != std::string_view::npos;
  if (says_bits && text.options.size() == 1) text.refuse(kExpected);
  const double bits = says_bits ? text.fraction(text.options[0], kExpected) : Lsh::kBits;
  if (bits > 0.5) text.refuse(kExpected);
  const char* const begin = text.options[says_bits ? 1 : 0].data();
  const std::string_view last = text.options.back();
  const std::string_view inner_text(begin, static_cast<std::size_t>(last.data() + last.size() - begin));
  constexpr auto kOnce = "lsh is around a codec that compares nothing itself, and once";
  const CodecText of_inner = CodecText::parse(text.plan, inner_text);
  if (of_inner.name == text.name) text.refuse(kOnce);  // before it is made: a text may name it thousands of times
  CodecPtr inner = make_codec(of_inner);
  if (inner->traits().needs_estimate) text.refuse(kOnce);
  if (!inner->traits().keeps_magnitude) text.refuse("votes have no magnitude, which differences need");
  if (&inner->upward() != inner.get() || &inner->upward_only() != inner.get()) {
    text.refuse("lsh takes codecs that are the same on both ways: leave :unbiased out");
  }
  return std::make_shared<Lsh>(bits, std::move(inner));
}

}  // namespace octavo
