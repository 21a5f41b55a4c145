// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/ATen.h>

#include <chrono>
#include <utility>

#include "octavo/codec/block_coding.h"
#include "octavo/comm/schedule/linear_sum.h"
#include "octavo/rules/counter_random.h"
#include "tests/cpp/ranks.h"

namespace octavo {

/// One rank's state of one tensor, and the rank's steps.
class MapSteps {
 public:
  static constexpr auto kTimeout = std::chrono::milliseconds(20000);

  MapSteps(const thread_ranks::BackendPtr& backend, LinearMapPtr map, Matrix shape, bool feedback, float momentum = 0)
      : wire_(backend, kTimeout),
        sum_(wire_, seconds_, c10::kCPU),
        map_(std::move(map)),
        shape_(shape),
        feedback_(feedback),
        momentum_(momentum) {}

  /// Makes a step, with the result in the place of the values.
  Outcome step(at::Tensor& values, bool commit = true) {
    ++step_;
    Contribution tensor = contribution(values);
    const Outcome outcome = sum_.run({{}, {tensor}, static_cast<double>(wire_.world_size()), step_});
    for (Versioned* state : {&residual_, &memory_}) commit ? state->commit() : state->roll_back();
    return outcome;
  }

  Contribution contribution(at::Tensor& values) {
    const Codec& exact = block_coding(BlockCodec::fp32);
    Contribution tensor{values.mutable_data_ptr<float>(), shape_.count(), &exact, &exact};
    const bool keeps_residual = feedback_ && map_->needs_residual();
    tensor.mapping = {map_.get(), shape_, step_,    feedback_, keeps_residual ? &residual_ : nullptr,
                      &memory_,   0,      momentum_};
    tensor.shared_key = rules::derive_key(step_, 99);
    tensor.rounding_key = step_ << 32U | static_cast<std::uint64_t>(wire_.rank());  // neighbours, as a Compressor's
    return tensor;
  }

  std::uint64_t sent_bytes() const { return wire_.sent_bytes(); }
  const at::Tensor& residual() const { return residual_.tensor(); }
  const at::Tensor& memory() const { return memory_.tensor(); }

 private:
  Wire wire_;
  PhaseSeconds seconds_;
  LinearSum sum_;
  LinearMapPtr map_;
  Matrix shape_;
  bool feedback_;
  float momentum_;
  std::uint64_t step_ = 0;
  Versioned residual_ = Versioned(at::kBFloat16), memory_ = Versioned(at::kFloat);
};

}  // namespace octavo
