// SPDX-License-Identifier: Apache-2.0
#include "octavo/codec/threshold.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <numeric>
#include <string>

#include "octavo/device/dispatch.h"
#include "octavo/device/scratch.h"
#include "octavo/rules/gradient_power.h"
#include "octavo/rules/threshold.h"

namespace octavo {

namespace {

constexpr std::uint64_t kWord = sizeof(std::uint32_t);

std::string text_of(double factor, BlockCodec values) {
  const std::string text = "threshold:" + shortest(factor);
  return values == BlockCodec::fp32 ? text : text + ":" + plan_name(values);
}

/// Figures that kernels write to `count` words of the device and that the host then reads.
class Figures {
 public:
  Figures(c10::Device device, std::uint64_t count, at::Tensor& kept_by_thread)
      : device_(device), count_(count), memory_(device, count, kept_by_thread) {}
  float* data() const { return memory_.data(); }
  /// Waits for the kernels, and returns the words in the host's memory.
  const void* read() {
    if (device_.is_cpu()) return memory_.data();
    on_host_ = elements_at(memory_.data(), at::kInt, count_, device_).to(at::kCPU);
    return on_host_.const_data_ptr();
  }

 private:
  c10::Device device_;
  std::uint64_t count_;
  ScratchFloats memory_;
  at::Tensor on_host_;
};

double mean_square(c10::Device device, const float* values, std::uint64_t count) {
  static thread_local at::Tensor memory;
  const LaunchScope scope(device);
  const std::uint64_t chunks = divide_up(count, rules::kPowerChunk);
  Figures powers(device, chunks, memory);
  scope.kernels().chunk_powers(scope.queue(), values, count, rules::kPowerChunk, powers.data());
  const auto* const sums = static_cast<const float*>(powers.read());
  return std::accumulate(sums, sums + chunks, 0.0) / static_cast<double>(count);
}

std::uint64_t count_large(c10::Device device, const float* values, std::uint64_t count, std::uint32_t least) {
  static thread_local at::Tensor memory;
  const LaunchScope scope(device);
  const std::uint64_t chunks = divide_up(count, rules::kCountChunk);
  Figures found(device, chunks, memory);
  scope.kernels().count_large(scope.queue(), values, count, least, reinterpret_cast<std::uint32_t*>(found.data()));
  const auto* const counts = static_cast<const std::uint32_t*>(found.read());
  return std::accumulate(counts, counts + chunks, std::uint64_t{0});
}

void work_out(c10::Device device, const EncodeInput& input, std::uint64_t count, float* values) {
  const LaunchScope scope(device);
  scope.kernels().subtract_estimate(scope.queue(), input, nullptr, count, values);
}

}  // namespace

Threshold::Threshold(double factor, BlockCodec values)
    : Codec(text_of(factor, values), {.packs = true, .leaves_unsent = true, .weighs_residual = true}),
      factor_(factor),
      values_(values) {}

std::uint64_t Threshold::most(std::uint64_t count) const {
  constexpr std::uint64_t kGreatest = std::numeric_limits<std::uint32_t>::max();  // the number of values is one word
  const double share = std::ceil(static_cast<double>(count) / (factor_ * factor_));
  return std::min({count, static_cast<std::uint64_t>(share), kGreatest});
}

std::uint64_t Threshold::sent_bytes(std::uint64_t kept, std::uint64_t count) const {
  return kWord + values_.payload_bytes(kept) + kWord * rules::IndexWords::of(count, kept).words;
}

/// One word more, because the indices of fewer values, rounded up to words, may take one more.
std::uint64_t Threshold::payload_bytes(std::uint64_t count) const { return sent_bytes(most(count), count) + kWord; }

std::uint64_t Threshold::pack(const std::uint8_t* payload, std::uint64_t count, std::uint8_t* packed) const {
  if (count == 0) return 0;
  const std::uint64_t bytes = sent_bytes(std::min<std::uint64_t>(read_word(payload, c10::kCPU), most(count)), count);
  std::memcpy(packed, payload, bytes);
  return bytes;
}

std::optional<std::uint64_t> Threshold::unpack(std::span<const std::uint8_t> packed, std::uint64_t count,
                                               std::uint8_t* payload) const {
  if (count == 0) return 0;
  if (packed.size() < kWord) return std::nullopt;
  const std::uint64_t kept = read_word(packed.data(), c10::kCPU);
  if ((kept == 0 && count > 0) || kept > most(count) || packed.size() < sent_bytes(kept, count)) return std::nullopt;
  std::memcpy(payload, packed.data(), sent_bytes(kept, count));
  return sent_bytes(kept, count);
}

std::vector<CodecPtr> Threshold::warm_up() const {
  std::vector<CodecPtr> denser;
  for (double factor = 2; factor < factor_; factor *= 2) {
    denser.push_back(std::make_shared<Threshold>(factor, values_.codec()));
  }
  return denser;
}

LargestPlace Threshold::place(std::uint8_t* payload, std::uint64_t kept, std::uint64_t count) const {
  std::uint8_t* const values = payload + kWord;
  auto* const indices = reinterpret_cast<std::uint32_t*>(values + values_.payload_bytes(kept));
  return {{count, kept}, {values, kept, {0, kept}}, indices};
}

void Threshold::encode(c10::Device device, const EncodeInput& input, const PayloadPart& to,
                       rules::Residual* next_residual) const {
  static thread_local at::Tensor memory;
  const std::uint64_t count = to.count;
  if (count == 0) return;
  const ScratchFloats values(device, count, memory);
  EncodeInput fresh = input;
  fresh.residual = nullptr;
  work_out(device, fresh, count, values.data());
  const auto threshold = static_cast<float>(factor_ * std::sqrt(mean_square(device, values.data(), count)));
  if (input.residual) work_out(device, input, count, values.data());
  const std::uint64_t large = count_large(device, values.data(), count, rules::least_above(threshold));
  const std::uint64_t kept = std::clamp<std::uint64_t>(large, 1, most(count));
  EncodeInput worked_out = {values.data()};
  worked_out.rounding_key = input.rounding_key;
  worked_out.first = input.first;
  encode_largest(device, worked_out, count, place(to.payload, kept, count), values_, next_residual);
  write_word(to.payload, static_cast<std::uint32_t>(kept), device);
}

void Threshold::decode(c10::Device device, const PayloadPart& from, Store store, float* out,
                       std::uint32_t* nonfinite) const {
  if (from.count == 0) return;
  const std::uint64_t kept = std::min<std::uint64_t>(read_word(from.payload, device), most(from.count));
  decode_largest(device, place(from.payload, kept, from.count), from.count, values_, store, out, nonfinite);
}

CodecPtr make_threshold(const CodecText& text) {
  constexpr auto kExpected =
      "threshold needs a factor from 1 to 1000 of the root of the gradient's mean square, as in threshold:3";
  if (text.options.empty() || text.options.size() > 2) text.refuse(kExpected);
  const BlockCodec values = text.options.size() == 2 ? values_codec(text, text.options[1]) : BlockCodec::fp32;
  const double factor = text.number(text.options[0], kExpected);
  if (!(factor >= 1 && factor <= 1000)) text.refuse(kExpected);
  return std::make_shared<Threshold>(factor, values);
}

}  // namespace octavo
