// SPDX-License-Identifier: Apache-2.0
#include "octavo/comm/feedback/dgc.h"

#include <cmath>

#include "octavo/comm/contribution.h"
#include "octavo/device/dispatch.h"
#include "octavo/device/scratch.h"

namespace octavo {

namespace {

class DgcMemory final : public FeedbackMemory {
 public:
  DgcMemory(StateStore& store, std::size_t parameter, double momentum, double norm)
      : residuals_(store.at(parameter, kWorkerResidual), store.at(parameter, kOwnerResidual), store.rank(),
                   store.world_size()),
        velocity_(store.at(parameter, kVelocity)),
        momentum_(static_cast<float>(momentum)),
        largest_norm_(norm / std::sqrt(store.world_size())) {}

  void begin(c10::Device device, const Contribution& tensor, float power) override;
  void encode(const SentPart& part, const EncodeInput& input) override;
  bool acts_alone() const override { return true; }
  bool needs_whole_power() const override { return largest_norm_ > 0; }

 private:
  Residuals residuals_;
  Versioned& velocity_;
  float momentum_;
  double largest_norm_;  // 0: no limit
  float clip_ = 1.0F;    // what gradients are multiplied by
  const float* now_ = nullptr;
  float* next_ = nullptr;
};

void DgcMemory::begin(c10::Device device, const Contribution& tensor, float power) {
  residuals_.begin(device, tensor);
  now_ = velocity_.now<float>(device);
  next_ = velocity_.next<float>(tensor.count, device);
  const double squares = static_cast<double>(power) * static_cast<double>(tensor.count);
  const double norm = std::sqrt(squares) * static_cast<double>(tensor.gradient_weight);
  clip_ = largest_norm_ > 0 && norm > largest_norm_ ? static_cast<float>(largest_norm_ / norm) : 1.0F;
}

void DgcMemory::encode(const SentPart& part, const EncodeInput& input) {
  static thread_local at::Tensor sent_memory;
  const LaunchScope scope(part.device);
  float* const velocity = next_ + part.first();
  scope.kernels().correct_momentum(scope.queue(), momentum_, input.gradient_weight * clip_, input.gradient,
                                   now_ ? now_ + part.first() : nullptr, part.count(), velocity);
  EncodeInput of_velocity = input;
  of_velocity.gradient = velocity;
  of_velocity.gradient_weight = 1.0F;
  const auto [now, next] = residuals_.at(part);
  of_velocity.residual = now;
  part.codec->encode(part.device, of_velocity, part.payload, next);
  if (!part.codec->traits().leaves_error) return;  // all was sent, so the momentum continues
  const ScratchFloats sent(part.device, part.count(), sent_memory);
  part.codec->decode(part.device, part.payload, Store::assign, sent.data(), nullptr);
  scope.kernels().mask_momentum(scope.queue(), sent.data(), part.count(), velocity);
}

}  // namespace

std::string Dgc::text() const {
  std::string text = "dgc";
  if (momentum_ != kMomentum) text.append(":").append(shortest(momentum_));
  if (norm_ > 0) text.append("+clip:").append(shortest(norm_));
  return text;
}

void Dgc::require_fit(const CodecText& text, const Codec& codec) const {
  if (!codec.traits().keeps_magnitude) text.refuse("dgc accumulates what is not sent, and votes have no magnitude");
  if (codec.traits().learnt_share < 1) text.refuse("dgc accumulates what is not sent: leave :unbiased out");
}

std::shared_ptr<FeedbackMemory> Dgc::remember(StateStore& store, std::size_t parameter) const {
  return std::make_shared<DgcMemory>(store, parameter, momentum_, norm_);
}

double momentum_option(const CodecText& text, std::string_view expected) {
  if (text.options.empty()) return Dgc::kMomentum;
  if (text.options.size() > 1) text.refuse(expected);
  const double momentum = text.number(text.options[0], expected);
  if (!(momentum >= 0 && momentum < 1)) text.refuse(expected);
  return momentum;
}

FeedbackPtr make_dgc(const CodecText& text) {
  constexpr auto kExpected = "dgc takes a momentum of at least 0 and below 1, as in topk:0.001+dgc:0.9";
  return std::make_shared<Dgc>(momentum_option(text, kExpected));
}

}  // namespace octavo
