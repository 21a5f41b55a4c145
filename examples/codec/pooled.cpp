// SPDX-License-Identifier: Apache-2.0
// A codec of a user's own: `pooled:4` sends the mean of every 4 values. It runs on the CPU, on all of torch's threads.
#include <algorithm>
#include <atomic>
#include <memory>
#include <octavo/codec.h>
#include <octavo/kernels/error.h>
#include <string>

namespace {

using octavo::PayloadPart;

class Pooled final : public octavo::Codec {
 public:
  /// Parts of a payload begin at multiples of the granule, so that a mean is never cut.
  explicit Pooled(std::uint64_t size) : Codec("pooled:" + std::to_string(size), {.granule = size}), size_(size) {}

  std::uint64_t payload_bytes(std::uint64_t count) const override {
    return (count + size_ - 1) / size_ * sizeof(float);
  }

  /// value_at() returns what is to be sent: gradient, momentum and residual together. Where a NaN or an infinity is
  /// among the values, their mean is one too, so that all ranks learn of it.
  void encode(c10::Device device, const octavo::EncodeInput& input, const PayloadPart& to,
              octavo::rules::Residual* next_residual) const override {
    require_cpu(device);
    octavo::for_each_part(device, size_, to, [&](const PayloadPart& part, std::uint64_t first) {
      const octavo::EncodeInput own = input.from(first);
      for (std::uint64_t i = 0; i < part.part.count; i += size_) {
        const std::uint64_t end = std::min(i + size_, part.part.count);
        float sum = 0;
        for (std::uint64_t j = i; j < end; ++j) sum += octavo::value_at(own, j);
        const float mean = means(part)[i / size_] = sum / static_cast<float>(end - i);
        for (std::uint64_t j = i; next_residual && j < end; ++j) {
          const float left_over = octavo::rules::left_over_of(octavo::value_at(own, j), mean);
          next_residual[first + j] = octavo::residual_at(own, j, left_over);
        }
      }
    });
  }

  void decode(c10::Device device, const PayloadPart& from, octavo::Store store, float* out,
              std::uint32_t* nonfinite) const override {
    require_cpu(device);
    octavo::for_each_part(device, size_, from, [&](const PayloadPart& part, std::uint64_t first) {
      for (std::uint64_t i = 0; i < part.part.count; ++i) {
        const float mean = means(part)[i / size_];
        octavo::store(store, mean, out[first + i]);
        if (nonfinite && !octavo::rules::is_finite(mean)) std::atomic_ref(*nonfinite).store(1);
      }
    });
  }

 private:
  float* means(const PayloadPart& part) const {
    return reinterpret_cast<float*>(part.payload) + part.part.first / size_;
  }

  static void require_cpu(c10::Device device) {
    if (device.is_cpu()) return;
    octavo::fail(octavo::ErrorCode::unsupported, "example.pooled", "there is no code for ", device.str(),
                 ": use the plan on the CPU");
  }

  std::uint64_t size_;
};

octavo::CodecPtr make_pooled(const octavo::CodecText& text) {
  constexpr auto kExpected = "pooled needs a number of values from 2 to 4096, as in pooled:4";
  if (text.options.size() != 1) text.refuse(kExpected);
  return std::make_shared<Pooled>(text.whole_number(text.options[0], 2, 4096, kExpected));
}

/// Registers the codec when the library is loaded.
const bool registered = [] {
  octavo::register_codec("pooled", make_pooled);
  return true;
}();

}  // namespace
