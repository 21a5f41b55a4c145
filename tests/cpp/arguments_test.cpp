// SPDX-License-Identifier: Apache-2.0
// Arguments that make no sense end in sentences, and tensors that torch keeps in unusual forms are read as what they
// mean.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "octavo/codec/block_coding.h"
#include "octavo/codec/registry.h"
#include "octavo/codec/sign_bits.h"
#include "octavo/comm/compressor.h"
#include "octavo/comm/fsdp_hook.h"
#include "octavo/comm/host_backend.h"
#include "octavo/comm/ownership.h"
#include "octavo/comm/parameter_info.h"
#include "octavo/comm/shared/shared_backend.h"
#include "octavo/device/pinned.h"
#include "octavo/optim/adamw.h"
#include "octavo/optim/lamb.h"
#include "octavo/optim/lion.h"
#include "octavo/optim/state_coding.h"
#include "octavo/optim/zero_one_adam.h"
#include "octavo/outer/outer.h"
#include "octavo/rules/top_k.h"
#include "tests/cpp/compressor_steps.h"
#include "tests/cpp/ranks.h"
#include "tests/cpp/refusal.h"

namespace octavo {

namespace {

using compressor_steps::kCount;
using thread_ranks::BackendPtr;
using thread_ranks::run_ranks;

constexpr AdamWOptions kAdamW = {.lr = 0.1, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8, .weight_decay = 0};
constexpr LambOptions kLamb = {0.1, 0.9, 0.999, 1e-8, 0, 0.01, 10};

bool has(const std::string& text, const char* part) { return text.find(part) != std::string::npos; }

at::Tensor expanded() { return at::zeros({1}).expand({8}); }

// ---- optimizer steps

/// Calls `step` with tensors of two parameters, of which the second one's `bad` is one that steps cannot write to.
/// Returns the refusal. Nothing may have changed.
template <class Step>
std::string refusal_of_second(Step step) {
  std::vector<at::Tensor> ones = {at::ones({8}), at::ones({8})}, zeros = {at::zeros({8}), at::zeros({8})};
  const std::vector<at::Tensor> bad = {at::zeros({8}), expanded()};
  const std::string said = refusal_of([&] { step(ones, zeros, bad); });
  for (const at::Tensor& one : ones) EXPECT_TRUE(at::equal(one, at::ones({8})));
  for (const at::Tensor& zero : zeros) EXPECT_TRUE(at::equal(zero, at::zeros({8})));
  return said;
}

TEST(StepArguments, AreCheckedBeforeAnyParameterChanges) {
  using Tensors = std::vector<at::Tensor>;
  const std::vector<std::int64_t> steps = {1, 1};
  at::Tensor coefficients = at::zeros({2}, at::kDouble);
  const auto lamb = [&](const Tensors& p, const Tensors& m, const Tensors& bad) {
    lamb_(p, p, m, bad, steps, coefficients, kLamb);
  };
  const auto signs = [](const Tensors& p, const Tensors&, const Tensors& bad) { sign_step_(bad, p, 0.1, 0); };
  const auto sync = [](const Tensors& p, const Tensors& m, const Tensors& bad) {
    zero_one_sync_(p, p, m, bad, {1, 1}, {1, 1});
  };
  const auto anchors = [](const Tensors& p, const Tensors& m, const Tensors& bad) {
    zero_one_sync_(p, bad, m, m, {1, 1}, {1, 1});
  };
  const auto adam = [&](const Tensors& p, const Tensors& m, const Tensors& bad) {
    adam_({.parameters = p, .gradients = p, .means = m, .squares = bad}, steps, kAdamW, true);
  };
  for (const std::string& said : {refusal_of_second(lamb), refusal_of_second(signs), refusal_of_second(sync),
                                  refusal_of_second(anchors), refusal_of_second(adam)}) {
    EXPECT_TRUE(has(said, "with memory for each element")) << said;
  }
}

TEST(StepArguments, StepsAreCountedFromOne) {
  at::Tensor parameter = at::ones({8}), mean = at::zeros({8}), square = at::zeros({8}),
             coefficient = at::zeros({1}, at::kDouble);
  for (const std::int64_t step : {0, -1}) {
    const std::vector<std::int64_t> steps = {step};
    EXPECT_TRUE(has(refusal_of([&] { adamw_(parameter, parameter, mean, square, kAdamW, step); }), "counted from 1"));
    EXPECT_TRUE(has(refusal_of([&] {
                      adam_({.parameters = {parameter}, .gradients = {parameter}, .means = {mean}, .squares = {square}},
                            steps, kAdamW, true);
                    }),
                    "counted from 1"));
    EXPECT_TRUE(has(refusal_of([&] { lamb_(parameter, parameter, mean, square, steps, coefficient, kLamb); }),
                    "counted from 1"));
    EXPECT_TRUE(has(refusal_of([&] { freeze_variance_(square, 0.999, 1e-8, 0, step); }), "counted from 1"));
  }
  EXPECT_TRUE(at::equal(parameter, at::ones({8})));
  EXPECT_TRUE(has(refusal_of([] { zero_one_kind(10, {0, 0, 0, 0}); }), "at least 1 step"));
  EXPECT_TRUE(has(refusal_of([] { decode_state(at::zeros({8}, at::kByte), at::zeros({1}), -1, {8, true}); }),
                  "a count of at least 0"));
}

TEST(StepArguments, RatesThatAreNotFiniteAndBetasOfOneAreRefused) {
  constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
  const std::vector<std::int64_t> steps = {1};
  at::Tensor p = at::ones({8}), mean = at::zeros({8}), square = at::zeros({8}),
             coefficient = at::zeros({1}, at::kDouble);
  const StepTensors tensors = {.parameters = {p}, .gradients = {p}, .means = {mean}, .squares = {square}};
  for (const AdamWOptions& bad : {AdamWOptions{kNaN, 0.9, 0.999, 1e-8, 0}, AdamWOptions{0.1, 1, 0.999, 1e-8, 0},
                                  AdamWOptions{0.1, 0.9, 1, 1e-8, 0}, AdamWOptions{0.1, 0.9, kNaN, 1e-8, 0},
                                  AdamWOptions{0.1, 0.9, 0.999, INFINITY, 0}, AdamWOptions{0.1, 0.9, 0.999, 0, kNaN},
                                  AdamWOptions{.eps = -1e-8}, AdamWOptions{.weight_decay = -0.1}}) {
    EXPECT_TRUE(has(refusal_of([&] { adam_(tensors, steps, bad, true); }), "[optim.adam] expected a "));
    EXPECT_TRUE(has(refusal_of([&] { adamw_(p, p, mean, square, bad, 1); }), "[optim.adamw] expected a "));
    const LambOptions lamb = {bad.lr, bad.beta1, bad.beta2, bad.eps, bad.weight_decay, 0, 10};
    EXPECT_TRUE(
        has(refusal_of([&] { lamb_(p, p, mean, square, steps, coefficient, lamb); }), "[optim.lamb] expected a "));
  }
  const StepTensors of_lion = {.parameters = {p}, .gradients = {p}, .means = {mean}};
  for (const LionOptions& bad :
       {LionOptions{kNaN, 0.9, 0.99, 0}, LionOptions{0.1, 1, 0.99, 0}, LionOptions{0.1, 0.9, -0.1, 0},
        LionOptions{0.1, 0.9, 0.99, INFINITY}, LionOptions{.weight_decay = -0.1}}) {
    EXPECT_TRUE(has(refusal_of([&] { lion_(of_lion, bad); }), "[optim.lion] expected a "));
  }
  EXPECT_TRUE(has(refusal_of([&] { sign_step_(p, p, kNaN, 0); }), "[optim.sign_step] expected a finite lr, got nan"));
  EXPECT_TRUE(has(refusal_of([&] { sign_step_(p, p, 0, -0.1); }), "a finite weight_decay of at least 0, got -0.1"));
  EXPECT_TRUE(at::equal(p, at::ones({8})) && at::equal(mean, at::zeros({8})));
}

TEST(StepArguments, OptionsThatAreLeftOutAreThoseOfPython) {
  const AdamWOptions adamw = {.lr = 1};
  EXPECT_EQ(std::vector({adamw.lr, adamw.beta1, adamw.beta2, adamw.eps, adamw.weight_decay}),
            std::vector({1.0, 0.9, 0.999, 1e-8, 1e-2}));
  const LionOptions lion = {.lr = 1};
  EXPECT_EQ(std::vector({lion.lr, lion.beta1, lion.beta2, lion.weight_decay}), std::vector({1.0, 0.9, 0.99, 0.0}));
  const LambOptions lamb = {.lr = 1};
  EXPECT_EQ(std::vector({lamb.beta1, lamb.beta2, lamb.eps, lamb.weight_decay, lamb.least_coefficient}),
            std::vector({0.9, 0.999, 1e-8, 1e-2, 0.01}));
  EXPECT_EQ(lamb.greatest_coefficient, 10);
  EXPECT_TRUE(has(refusal_of([] { zero_one_kind(10, {.variance_steps = 5}); }), "got 5, 16, 0 and 16"));
}

TEST(StepArguments, OwnTheirLists) {
  at::Tensor parameter = at::ones({8}), mean = at::zeros({8}), square = at::zeros({8});
  const StepTensors tensors = {
      .parameters = {parameter}, .gradients = {at::ones({8})}, .means = {mean}, .squares = {square}, .numbers = {3}};
  adam_(tensors, {1}, {.lr = 0.1, .weight_decay = 0}, true);
  EXPECT_NEAR(parameter[7].item<float>(), 0.9F, 1e-5F);
  EXPECT_NEAR(mean[0].item<float>(), 0.1F, 1e-6F);
}

TEST(UndefinedTensors, AreRefusedByOctavosErrors) {
  const at::Tensor none;
  at::Tensor target, codes = at::zeros({8}, at::kByte), scales = at::zeros({1}), p = at::ones({8}), m = at::zeros({8});
  const at::Tensor packed = at::zeros({1}, at::kByte);
  const std::vector<std::int64_t> steps = {1};
  const StepTensors tensors = {.parameters = {p},
                               .gradients = {p},
                               .means = {m},
                               .squares = {m},
                               .gradient_factor = std::optional<at::Tensor>(none)};
  EXPECT_TRUE(has(refusal_of([&] { unpackbits_out(packed, target); }), "[codec.unpackbits] expected out as a tensor"));
  EXPECT_TRUE(has(refusal_of([&] { encode_state_(none, codes, scales, {8, true}); }), "expected values as a tensor"));
  EXPECT_TRUE(has(refusal_of([&] { encode_state_(p, codes, target, {8, true}); }), "expected scales as a tensor"));
  EXPECT_TRUE(has(refusal_of([&] { adam_(tensors, steps, kAdamW, true); }), "got an undefined one"));
  EXPECT_TRUE(has(refusal_of([] { reach_by_shared_memory({}, std::nullopt, std::chrono::seconds(1)); }),
                  "expected a back end of c10d, got none"));
}

TEST(StepArguments, MayBeLeavesInAnyMemoryOrder) {
  at::Tensor parameter = at::ones({4, 6}).t().requires_grad_(), mean = at::zeros({6, 4}), square = at::zeros({6, 4});
  const std::vector<std::int64_t> steps = {1};
  adam_({.parameters = {parameter}, .gradients = {mean.clone().add_(1)}, .means = {mean}, .squares = {square}}, steps,
        kAdamW, true);
  EXPECT_NEAR(parameter[2][3].item<float>(), 0.9F, 1e-5F);
  at::Tensor wide = at::ones({8}, at::kDouble).requires_grad_(), its_mean = at::zeros({8}), its_square = at::zeros({8});
  adamw_(wide, at::ones({8}), its_mean, its_square, kAdamW, 1);
  EXPECT_NEAR(wide[7].item<double>(), 0.9, 1e-5);
}

TEST(LazyTensors, AreReadAsWhatTheyMean) {
  at::Tensor parameter = at::zeros({8}), mean = at::zeros({8}), square = at::zeros({8});
  const at::Tensor negative = at::imag(at::complex(at::zeros({8}), at::ones({8})).conj());
  ASSERT_TRUE(negative.is_neg());
  adamw_(parameter, negative, mean, square, kAdamW, 1);
  EXPECT_NEAR(mean[0].item<float>(), -0.1F, 1e-6F);
  const std::vector<std::int64_t> steps = {1};
  adam_({.parameters = {parameter}, .gradients = {negative}, .means = {mean.zero_()}, .squares = {square.zero_()}},
        steps, kAdamW, true);
  EXPECT_NEAR(mean[0].item<float>(), -0.1F, 1e-6F);
  const at::Tensor none = at::_efficientzerotensor({8}, at::kFloat);
  adamw_(parameter, none, mean.zero_(), square, kAdamW, 1);
  EXPECT_EQ(mean[0].item<float>(), 0);

  EXPECT_TRUE(at::equal(packbits(negative, 8), packbits(negative.clone(), 8)));
  EXPECT_FALSE(at::equal(packbits(negative, 8), packbits(at::ones({8}), 8)));
  at::Tensor codes = at::zeros({8}, at::kByte), same = codes.clone(), scales = at::zeros({1});
  encode_state_(negative, codes, scales, {8, true});
  encode_state_(negative.clone(), same, scales, {8, true});
  EXPECT_TRUE(at::equal(codes, same));
}

// ---- codecs

TEST(CodecArguments, AFactoryMakesACodec) {
  EXPECT_TRUE(has(refusal_of([] { register_codec("test-none", nullptr); }), "expected a factory for 'test-none'"));
  register_codec("test-null", [](const CodecText&) { return CodecPtr(); });
  for (const char* plan : {"test-null", "int4+down:test-null"}) {
    EXPECT_TRUE(has(refusal_of([&] { Plan::parse(plan); }), "the factory of the codec test-null has returned none"));
  }
}

TEST(CodecArguments, APlanAndALinearMapAreNoCodecs) {
  for (const char* plan : {"auto", "auto:int8", "int4+ef", "topk:0.01+ef", "delta+int4", "int4;a=int8", "dgc:0.001"}) {
    EXPECT_EQ(refusal_of([&] { make_codec(plan); }),
              "[codec.make_codec] expected a codec, such as int8, got a plan, which Plan::parse() reads: " +
                  std::string(plan));
    EXPECT_FALSE(Plan::parse(plan).text().empty());
  }
  for (const char* map : {"powersgd:4", "sketch:0.1"}) {
    EXPECT_EQ(refusal_of([&] { make_codec(map); }),
              "[codec.make_codec] expected a codec, such as int8, got a linear map, which make_map() makes: " +
                  std::string(map));
    EXPECT_NE(make_map(CodecText::parse(map, map)), nullptr);
  }
  EXPECT_EQ(make_codec(std::string("topk:64/4096:sign"))->text(), "topk:64/4096:sign");
  EXPECT_TRUE(has(refusal_of([] { make_codec("int9"); }), "'int9' is no plan: there is no codec of this name"));
}

/// A codec whose name in plans may be another than that of its text.
class Named final : public Codec {
 public:
  Named(const std::string& text, std::uint64_t granule) : Codec(text, {.granule = granule}) {}
  std::uint64_t payload_bytes(std::uint64_t count) const override { return count; }
  void encode(c10::Device, const EncodeInput&, const PayloadPart&, rules::Residual*) const override {}
  void decode(c10::Device, const PayloadPart&, Store, float*, std::uint32_t*) const override {}
};

TEST(CodecArguments, ACodecsTextIsReadAsThatCodecAndItsGranuleIsAtLeastOne) {
  register_codec("test-named", [](const CodecText&) { return std::make_shared<Named>("test-another", 1); });
  EXPECT_TRUE(has(refusal_of([] { Plan::parse("test-named"); }), "the codec test-named calls itself test-another"));
  EXPECT_TRUE(has(refusal_of([] { Named("test-named", 0); }), "expected a granule of at least 1 value of test-named"));
}

TEST(CodecArguments, AllOfALargeTensorThatIsKeptIsCountedIn64Bits) {
  constexpr std::uint64_t kCount = 1ULL << 33;
  const rules::TopK shape = {.tile = kCount, .kept = kCount / 4};
  EXPECT_EQ(rules::TopTile::of(shape, 0, kCount).kept, kCount / 4);
  EXPECT_EQ(shape.kept_in(kCount), kCount / 4);
}

TEST(CodecArguments, ATextThatNamesLshThousandsOfTimesIsRefusedAtOnce) {
  std::string text;
  for (int i = 0; i < 100000; ++i) text += "lsh:";
  EXPECT_TRUE(has(refusal_of([&] { Plan::parse(text + "int4"); }), "and once"));
}

TEST(CodecArguments, WhatPlansRefuseConstructorsRefuse) {
  EXPECT_TRUE(has(refusal_of([] { BlockCoding(BlockCodec::int4, 12); }), "a multiple of 8 values, got 12"));
  EXPECT_TRUE(has(refusal_of([] { BlockCoding(BlockCodec::sign, 0, true); }), "round stochastically"));
}

TEST(CodecArguments, NoValuesArePackedAndUnpacked) {
  const CodecPtr threshold = make_codec("threshold:3");
  std::vector<std::uint8_t> payload(threshold->payload_bytes(0) + 64), packed(payload.size()), again(payload.size());
  threshold->encode(c10::kCPU, {nullptr}, {payload.data(), 0, {0, 0}}, nullptr);
  const std::uint64_t bytes = threshold->pack(payload.data(), 0, packed.data());
  EXPECT_EQ(threshold->unpack({packed.data(), bytes}, 0, again.data()), bytes);
}

TEST(PinnedMemory, OfADeviceThatTorchLacksIsUnsupported) {
  if (at::hasCUDA()) return;  // then it has some
  try {
    pinned_zeros({4}, at::kFloat, 0, at::kCUDA);
    FAIL() << "it did not throw";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::unsupported) << error.what();
  }
}

// ---- exchanges

TEST(CommArguments, WithoutABackendOrRanksAreRefused) {
  EXPECT_TRUE(has(refusal_of([] { Wire(nullptr, std::chrono::seconds(1)); }), "expected a back end of c10d, got none"));
  run_ranks(1, [](const BackendPtr& backend, int) {
    for (const int timeout : {0, -5}) {
      EXPECT_TRUE(has(refusal_of([&] { Wire(backend, std::chrono::milliseconds(timeout)); }), "a timeout above 0 ms"));
    }
  });
  EXPECT_TRUE(has(refusal_of([] { owned_range(8, 0, 2, Ownership::rows(0)); }), "units of at least 1 element"));
  EXPECT_TRUE(has(refusal_of([] { HostBackend(nullptr); }), "expected a back end for the CPU, got none"));
  EXPECT_TRUE(has(refusal_of([] { Compressor(nullptr, Plan::parse("int4"), {}); }), "expected a wire"));
  EXPECT_TRUE(has(refusal_of([] { ring_bytes(8, 0); }), "at least 1 rank"));
  EXPECT_TRUE(has(refusal_of([] { owned_range(8, 0, 0); }), "expected a rank below"));
}

TEST(CommArguments, ABucketAndItsSlotsFitTheParameters) {
  run_ranks(1, [&](const BackendPtr& backend, int) {
    Compressor compressor = compressor_steps::make(backend, "int4+ef");
    const auto said = [&](const at::Tensor& bucket, const std::vector<Slot>& slots) {
      compressor.begin_step();
      return refusal_of([&] { compressor.reduce(bucket, slots); });
    };
    const auto count = static_cast<std::int64_t>(kCount);
    EXPECT_TRUE(has(said(at::ones({count / 2}), {{0, 0}}), "expected weight, "));
    EXPECT_TRUE(has(said(at::ones({count}), {{0, 1}}), "expected weight, "));
    EXPECT_TRUE(has(said(at::ones({count}), {{7, 0}}), "expected one of 2 parameters, got number 7"));
    EXPECT_TRUE(
        has(said(at::ones({count}, at::kInt), {{0, 0}}), "expected a bucket of a floating or complex dtype, got Int"));
    EXPECT_TRUE(has(said(at::ones({2 * count}).slice(0, 0, 2 * count, 2), {{0, 0}}), "row-major order"));
    EXPECT_TRUE(has(said(at::ones({1}).expand({count}), {{0, 0}}), "call contiguous()"));
    EXPECT_TRUE(has(said(at::_neg_view(at::ones({count})), {{0, 0}}), "call clone()"));
    EXPECT_TRUE(has(said(at::ones({2 * count}), {{0, 0}, {0, kCount}}), "got weight again"));
    const at::Tensor complex = at::zeros({count, 1}, at::kComplexFloat).to_sparse(1);
    const auto sparse = [&] { compressor.reduce(complex, {}); };
    EXPECT_TRUE(has(refusal_of(sparse, ErrorCode::unsupported), "a sparse gradient of complex numbers has no plan"));
    EXPECT_TRUE(has(refusal_of([&] { compressor.finish(nullptr); }), "before, got none"));
    for (const double divisor : {0.0, -1.0, static_cast<double>(NAN)}) {
      EXPECT_TRUE(
          has(refusal_of([&] { compressor.reduce(at::ones({count}), {{0, 0}}, divisor); }), "a finite divisor"));
    }
    EXPECT_TRUE(has(refusal_of([&] { compressor.owed(7); }), "expected one of 2 parameters, got number 7"));
    EXPECT_TRUE(
        has(refusal_of([&] { compressor.was_in_bucket(7); }), "[comm.was_in_bucket] expected one of 2 parameters"));
    EXPECT_TRUE(has(refusal_of([&] { compressor.load_world({}); }), "the state of at least 1 rank"));
    EXPECT_TRUE(has(refusal_of([&] { compressor.set_owed_share(NAN); }), "expected a share from 0 to 1"));
    at::Tensor good = at::ones({count});
    compressor.begin_step();
    compressor.reduce(good, {{0, 0}});
    EXPECT_NEAR(good[0].item<float>(), 1, 1e-3);
    EXPECT_TRUE(has(refusal_of([&] { compressor.reduce(good, {{0, 0}}); }), "once in a step, got weight again"));
    compressor.end_step();
    EXPECT_TRUE(has(refusal_of([&] { compressor.reduce(good, {{0, 0}}); }), "no step is under way"));
  });
}

TEST(CommArguments, AJobHasAsManyTransfersAsItSays) {
  run_ranks(2, [&](const BackendPtr& backend, int) {
    for (const Exchange exchange : {Exchange::planned, Exchange::nothing}) {
      Compressor compressor = compressor_steps::make(backend, "int4+ef");
      compressor.set_exchange(exchange);
      compressor.begin_step();
      auto job = compressor.begin(at::ones({kCount}), {{0, 0}});
      while (Compressor::is_to_advance(*job)) compressor.advance(*job);
      EXPECT_TRUE(has(refusal_of([&] { compressor.advance(*job); }), "call finish()"));
      compressor.finish(std::move(job));
      EXPECT_TRUE(compressor.end_step());
    }
  });
}

TEST(CommArguments, TheHookOfFsdpKnowsItsGroupsAndParameters) {
  EXPECT_TRUE(has(refusal_of([] { FsdpHook(nullptr, {}); }), "expected a compressor, got none"));
  run_ranks(1, [&](const BackendPtr& backend, int) {
    const auto compressor =
        std::make_shared<Compressor>(std::make_unique<Wire>(backend, std::chrono::seconds(20)), Plan::parse("int4"),
                                     std::vector<ParameterInfo>{{"w", 64, false}});
    EXPECT_TRUE(has(refusal_of([&] { FsdpHook(compressor, {{{1, 64}}}); }), "one of 1 parameters, got number 1"));
    FsdpHook hook(compressor, {{{0, 64}}});
    EXPECT_TRUE(has(refusal_of([&] { hook.mark(1ULL << 34); }), "one of 1 parameters"));
    EXPECT_TRUE(
        has(refusal_of([&] { hook.all_reduce(7, at::ones({64})); }), "one of 1 parameter groups, got number 7"));
    at::Tensor shard = at::ones({64});
    hook.all_reduce(0, shard);
    EXPECT_NEAR(shard[0].item<float>(), 1, 1e-3);
    compressor->end_step();
    hook.all_reduce(0, shard);  // of a second loss, without another forward pass of the whole model
    EXPECT_TRUE(compressor->is_in_step());
  });
}

TEST(CommArguments, ParametersHaveNamesOfTheirOwnAndWholeRows) {
  run_ranks(1, [&](const BackendPtr& backend, int) {
    const auto said = [&](std::vector<ParameterInfo> parameters) {
      return refusal_of([&] {
        Compressor(std::make_unique<Wire>(backend, std::chrono::seconds(20)), Plan::parse("int4"),
                   std::move(parameters));
      });
    };
    EXPECT_TRUE(has(said({{"w", 64, false}, {"w", 64, false}}), "two parameters have the name w"));
    EXPECT_TRUE(has(said({{"w", 64, false, 0}}), "got 0 rows"));
    EXPECT_TRUE(has(said({{"w", 64, false, 7}}), "got 7 rows"));
  });
  const std::vector<OuterParameter> twice = {{"w", at::ones({64, 64}), false}, {"w", at::ones({64, 64}), false}};
  EXPECT_TRUE(has(refusal_of([&] { Outer::require(Plan::parse("sign+ef"), twice, {}); }), "the name w"));
}

TEST(CommArguments, AWorldThatSavedNothingIsRefused) {
  run_ranks(1, [&](const BackendPtr& backend, int) {
    Outer outer(backend, std::chrono::seconds(20), Plan::parse("sign+ef"), {{"w", at::ones({64, 64}), false}}, {});
    EXPECT_TRUE(has(refusal_of([&] { outer.load_world({}, outer.positions(), 1, std::nullopt); }), "got 0 ranks"));
  });
}

}  // namespace

}  // namespace octavo
