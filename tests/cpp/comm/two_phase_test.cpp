// SPDX-License-Identifier: Apache-2.0
#include "octavo/comm/schedule/two_phase.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "octavo/codec/block_coding.h"
#include "octavo/codec/registry.h"
#include "octavo/comm/feedback/ef14.h"
#include "octavo/comm/plan.h"
#include "octavo/kernels/error.h"
#include "octavo/rules/counter_random.h"
#include "tests/cpp/ranks.h"

namespace octavo {

namespace {

using thread_ranks::BackendPtr;
using thread_ranks::run_ranks;
constexpr auto kTimeoutOfSums = std::chrono::milliseconds(20000);

struct Case {
  BlockCodec up, down;
  int world;
  double tolerance;  // of the relative error, beside what the codecs make of the values
};

class TwoPhaseCase : public ::testing::TestWithParam<Case> {};

Outcome reduce(TwoPhase& two_phase, const Contribution& tensor, double divisor) {
  return two_phase.run({{}, {tensor}, divisor});
}

Outcome reduce(Wire& wire, const Contribution& tensor, double divisor) {
  PhaseSeconds seconds;
  TwoPhase two_phase(wire, seconds);
  return reduce(two_phase, tensor, divisor);
}

at::Tensor gradient_of(int rank, std::int64_t count) {
  return at::remainder(at::arange(count, at::kFloat) * (37 * (rank + 1)), 101) / 50.5 - 1 + 0.1 * rank;
}

/// Returns what a receiver of these values has.
at::Tensor coded_with(BlockCodec codec, const at::Tensor& values) {
  const Codec& coding = block_coding(codec);
  const auto count = static_cast<std::uint64_t>(values.numel());
  at::Tensor payload = at::empty({static_cast<std::int64_t>(coding.payload_bytes(count))}, at::kByte);
  at::Tensor decoded = at::empty_like(values);
  const PayloadPart all{payload.mutable_data_ptr<std::uint8_t>(), count, {0, count}};
  coding.encode(at::kCPU, {values.const_data_ptr<float>()}, all, nullptr);
  coding.decode(at::kCPU, all, Store::assign, decoded.mutable_data_ptr<float>(), nullptr);
  return decoded;
}

/// How like a result is to what is expected: zeros have no projection, and a negated result has a negative one.
struct Likeness {
  double projection, error;  // (result . expected) / (expected . expected), |result - expected| / |expected|
  Likeness(const at::Tensor& result, const at::Tensor& expected)
      : projection((result.dot(expected) / expected.dot(expected)).item<double>()),
        error(((result - expected).norm() / expected.norm()).item<double>()) {}
};

TEST_P(TwoPhaseCase, AveragesAndIsBitIdenticalOnAllRanks) {
  const Case c = GetParam();
  for (const std::int64_t count : {1, 63, 1000, 5001}) {
    at::Tensor expected = at::zeros({count}), received = at::zeros({count});
    for (int rank = 0; rank < c.world; ++rank) {
      expected += gradient_of(rank, count) / c.world;
      received += coded_with(c.up, gradient_of(rank, count)) / c.world;
    }
    std::vector<at::Tensor> results(static_cast<std::size_t>(c.world));
    run_ranks(c.world, [&](const BackendPtr& backend, int rank) {
      Wire wire(backend, kTimeoutOfSums);
      at::Tensor values = gradient_of(rank, count);
      Contribution tensor{values.mutable_data_ptr<float>(), static_cast<std::uint64_t>(count), &block_coding(c.up),
                          &block_coding(c.down)};
      const Outcome outcome = reduce(wire, tensor, c.world);
      EXPECT_TRUE(outcome.finite);
      EXPECT_GT(outcome.power[0], 0.0F);
      results[static_cast<std::size_t>(rank)] = values;
    });
    for (const auto& result : results) EXPECT_TRUE(at::equal(result, results[0])) << "replicas differ";
    // An owner adds its own values as they are: the result lies between values that are coded once and twice.
    const Likeness got(results[0], expected);
    const Likeness once(coded_with(c.down, expected), expected), twice(coded_with(c.down, received), expected);
    SCOPED_TRACE(count);
    EXPECT_GE(got.projection, std::min(once.projection, twice.projection) - 0.05);
    EXPECT_LE(got.projection, std::max(once.projection, twice.projection) + 0.05);
    EXPECT_GE(got.error, 0.85 * once.error - c.tolerance);
    EXPECT_LE(got.error, 1.15 * twice.error + c.tolerance);
  }
}

INSTANTIATE_TEST_SUITE_P(Codecs, TwoPhaseCase,
                         ::testing::Values(Case{BlockCodec::fp32, BlockCodec::fp32, 2, 1e-6},
                                           Case{BlockCodec::fp32, BlockCodec::fp32, 3, 1e-6},
                                           Case{BlockCodec::bf16, BlockCodec::bf16, 2, 4e-3},
                                           Case{BlockCodec::bf16, BlockCodec::bf16, 4, 4e-3},
                                           Case{BlockCodec::int4, BlockCodec::int4, 2, 1e-6},
                                           Case{BlockCodec::sign, BlockCodec::sign, 2, 1e-6},
                                           Case{BlockCodec::sign, BlockCodec::sign, 3, 1e-6}));

TEST(TwoPhase, AMajorityDecidesAndATieIsZero) {
  const float votes[2][3] = {{5, 1, -1}, {2, -9, -3}};
  run_ranks(2, [&](const BackendPtr& backend, int rank) {
    Wire wire(backend, kTimeoutOfSums);
    float values[3];
    std::copy_n(votes[rank], 3, values);
    Contribution tensor{values, 3, &block_coding(BlockCodec::sign_vote), &block_coding(BlockCodec::sign_vote)};
    reduce(wire, tensor, 1);
    EXPECT_EQ(values[0], 1.0F);
    EXPECT_EQ(values[1], 0.0F);
    EXPECT_EQ(values[2], -1.0F);
  });
}

/// In the rows of an embedding, for example, only the ranks that have a token have a gradient, or none does.
TEST(TwoPhase, AnExactZeroAbstains) {
  constexpr std::uint64_t kCount = 1000;
  for (const int world : {1, 2, 3, 4}) {
    run_ranks(world, [&](const BackendPtr& backend, int rank) {
      Wire wire(backend, kTimeoutOfSums);
      std::vector<float> values(kCount);
      const bool is_last = rank == world - 1;
      for (std::uint64_t i = 0; i < kCount; ++i) {
        const float of_one_rank = is_last ? 1.0F : 0.0F;
        values[i] = std::vector{0.0F, -0.0F, of_one_rank, -of_one_rank}[i % 4];
      }
      Contribution tensor{values.data(), kCount, &block_coding(BlockCodec::sign_vote),
                          &block_coding(BlockCodec::sign_vote)};
      reduce(wire, tensor, world);
      for (std::uint64_t i = 0; i < kCount; ++i) {
        ASSERT_EQ(values[i], (std::vector{0.0F, 0.0F, 1.0F, -1.0F}[i % 4])) << "element " << i << " of " << world;
      }
    });
  }
}

/// Returns the mean over steps of a rank's results of gradient_of() with a codec with feedback. Calls check(outcome,
/// values) after each step.
template <class Check>
at::Tensor mean_of_steps(const BackendPtr& backend, std::int64_t count, int steps, const Codec& codec, Check check) {
  Wire wire(backend, kTimeoutOfSums);
  PhaseSeconds seconds;
  TwoPhase two_phase(wire, seconds);
  Versioned worker(at::kBFloat16), owner(at::kBFloat16);
  const at::Tensor gradient = gradient_of(wire.rank(), count);
  at::Tensor sum = at::zeros({count});
  for (int step = 0; step < steps; ++step) {
    at::Tensor values = gradient.clone();
    Contribution tensor{values.mutable_data_ptr<float>(), static_cast<std::uint64_t>(count), &codec, &codec};
    tensor.memory = std::make_shared<Ef14Memory>(worker, owner, wire.rank(), wire.world_size());
    tensor.shared_key = rules::derive_key(static_cast<std::uint64_t>(step), 99);
    tensor.rounding_key = rules::derive_key(static_cast<std::uint64_t>(wire.rank()), static_cast<std::uint64_t>(step));
    check(reduce(two_phase, tensor, wire.world_size()), values);
    worker.commit();
    owner.commit();
    sum += values;
  }
  return sum / steps;
}

TEST(TwoPhase, FeedbackSendsEverythingInTheEnd) {
  constexpr std::int64_t kCount = 1000;
  run_ranks(2, [&](const BackendPtr& backend, int) {
    const auto no_check = [](const Outcome&, const at::Tensor&) {};
    const at::Tensor mean = mean_of_steps(backend, kCount, 800, block_coding(BlockCodec::sign), no_check);
    const at::Tensor expected = (gradient_of(0, kCount) + gradient_of(1, kCount)) / 2;
    const double error = (mean - expected).abs().max().item<double>();
    EXPECT_LT(error, 0.05) << "one bit with feedback did not average to the mean";
  });
}

TEST(TwoPhase, TheKeyDecidesHowResidualsAreRounded) {
  constexpr std::int64_t kCount = 1000;
  const auto residuals = [&](std::uint64_t key) {  // the residuals of rank 0: the worker's, then the owner's
    std::vector<at::Tensor> kept;
    run_ranks(2, [&](const BackendPtr& backend, int rank) {
      Wire wire(backend, kTimeoutOfSums);
      at::Tensor values = gradient_of(rank, kCount);
      Versioned worker(at::kBFloat16), owner(at::kBFloat16);
      Contribution tensor{values.mutable_data_ptr<float>(), kCount, &block_coding(BlockCodec::sign),
                          &block_coding(BlockCodec::sign)};
      tensor.memory = std::make_shared<Ef14Memory>(worker, owner, rank, 2);
      tensor.rounding_key = key;
      reduce(wire, tensor, 2);
      worker.commit();
      owner.commit();
      if (rank == 0) kept = {worker.tensor(), owner.tensor()};
    });
    return kept;
  };
  const auto first = residuals(1), again = residuals(1), other = residuals(2);
  for (const std::size_t which : {0, 1}) {
    EXPECT_TRUE(at::equal(first[which], again[which]));
    EXPECT_FALSE(at::equal(first[which], other[which]));
    EXPECT_TRUE(at::allclose(first[which].to(at::kFloat), other[which].to(at::kFloat), 0x1p-7, 0));
  }
}

TEST(TwoPhase, WhatARankSaysOfItsOwnRangeIsNotCoded) {
  constexpr std::int64_t kCount = 1000;
  for (int speaker = 0; speaker < 3; ++speaker) {
    run_ranks(3, [&](const BackendPtr& backend, int rank) {
      Wire wire(backend, kTimeoutOfSums);
      at::Tensor values = rank == speaker ? gradient_of(rank, kCount) : at::zeros({kCount});
      Versioned worker(at::kBFloat16), owner(at::kBFloat16);
      Contribution tensor{values.mutable_data_ptr<float>(), kCount, &block_coding(BlockCodec::sign),
                          &block_coding(BlockCodec::fp32)};
      tensor.memory = std::make_shared<Ef14Memory>(worker, owner, rank, 3);
      reduce(wire, tensor, 1);
      worker.commit();
      const OthersRanges sent = others_ranges(kCount, rank, 3);
      EXPECT_EQ(worker.tensor().numel(), static_cast<std::int64_t>(sent.count));
      const Range own = owned_range(kCount, speaker, 3);
      const auto part = [&](const at::Tensor& all) {
        return all.narrow(0, static_cast<std::int64_t>(own.first), static_cast<std::int64_t>(own.count));
      };
      EXPECT_TRUE(at::equal(part(values), part(gradient_of(speaker, kCount))));
      EXPECT_FALSE(at::equal(values, gradient_of(speaker, kCount)));
    });
  }
}

TEST(TwoPhase, ANaNOnOneRankReachesAll) {
  run_ranks(3, [&](const BackendPtr& backend, int rank) {
    Wire wire(backend, kTimeoutOfSums);
    for (const std::int64_t bad : {5, 500, 777}) {  // elements of rank 1's gradient, one in the range of each rank
      at::Tensor values = gradient_of(rank, 1000);
      if (rank == 1) values[bad].fill_(std::nanf(""));
      Contribution tensor{values.mutable_data_ptr<float>(), 1000, &block_coding(BlockCodec::sign),
                          &block_coding(BlockCodec::sign)};
      EXPECT_FALSE(reduce(wire, tensor, 3).finite);
      EXPECT_TRUE(std::isnan(values[bad].item<float>()));
    }
  });
}

TEST(TwoPhase, ATensorWithoutGradientAnywhereIsAbsentAndDecaysItsMomentum) {
  run_ranks(2, [&](const BackendPtr& backend, int) {
    Wire wire(backend, kTimeoutOfSums);
    at::Tensor values = at::zeros({100}), momentum = at::ones({100}), preconditioner = at::ones({100});
    Contribution tensor{values.mutable_data_ptr<float>(), 100, &block_coding(BlockCodec::sign),
                        &block_coding(BlockCodec::sign)};
    tensor.momentum = momentum.const_data_ptr<float>();
    tensor.preconditioner = preconditioner.const_data_ptr<float>();
    tensor.gradient_weight = 0.1F;
    tensor.momentum_weight = 0.9F;
    EXPECT_EQ(reduce(wire, tensor, 2).power[0], 0.0F);
    EXPECT_TRUE(at::equal(values, at::full({100}, 0.9F)));
    values.zero_();
    reduce(wire, tensor, 1);  // a sum
    EXPECT_TRUE(at::equal(values, at::full({100}, 1.8F)));
  });
}

TEST(TwoPhase, ANaNInTheMomentumOfAnAbsentTensorIsTold) {
  run_ranks(2, [&](const BackendPtr& backend, int) {
    Wire wire(backend, kTimeoutOfSums);
    at::Tensor values = at::zeros({100}), momentum = at::full({100}, std::nanf("")), preconditioner = at::ones({100});
    Contribution tensor{values.mutable_data_ptr<float>(), 100, &block_coding(BlockCodec::fp32),
                        &block_coding(BlockCodec::fp32)};
    tensor.momentum = momentum.const_data_ptr<float>();
    tensor.preconditioner = preconditioner.const_data_ptr<float>();
    tensor.momentum_weight = 0.9F;
    EXPECT_FALSE(reduce(wire, tensor, 2).finite);
  });
}

/// A power that is estimated from a part of a large tensor may see only zeros.
TEST(TwoPhase, ATensorThatIsNearlyZeroIsSentAlsoWhereDenormalsAreFlushed) {
  for (const bool flush : {false, true}) {
    run_ranks(2, [&](const BackendPtr& backend, int rank) {
      at::globalContext().setFlushDenormal(flush);  // in this thread
      Wire wire(backend, kTimeoutOfSums);
      at::Tensor values = at::zeros({1 << 17});
      if (rank == 0) values[1000].fill_(3);
      Contribution tensor{values.mutable_data_ptr<float>(), 1 << 17, &block_coding(BlockCodec::fp32),
                          &block_coding(BlockCodec::fp32)};
      EXPECT_GT(reduce(wire, tensor, 2).power[0], 0.0F);
      EXPECT_EQ(values[1000].item<float>(), 1.5F);
    });
  }
}

TEST(TwoPhase, PartsAreWholeBlocksOfBothCodecs) {
  constexpr std::int64_t kOwned = 1 << 17, kBlock = 24;
  // one magnitude per block, where blocks begin anew in each owner's range: then signs lose nothing
  const at::Tensor expected = at::floor(at::remainder(at::arange(2 * kOwned, at::kFloat), kOwned) / kBlock) + 1;
  const BlockCoding signs(BlockCodec::sign, kBlock);
  run_ranks(2, [&](const BackendPtr& backend, int) {
    Wire wire(backend, kTimeoutOfSums);
    at::Tensor values = expected.clone();
    Contribution tensor{values.mutable_data_ptr<float>(), 2 * kOwned, &signs, &block_coding(BlockCodec::fp32)};
    reduce(wire, tensor, 2);
    EXPECT_TRUE(at::allclose(values, expected));
  });
}

TEST(TwoPhase, TellsTheMeanSquareOfTheGradientsOverRanks) {
  for (const std::int64_t count : {7, 1 << 20}) {
    run_ranks(2, [&](const BackendPtr& backend, int rank) {
      Wire wire(backend, kTimeoutOfSums);
      at::Tensor values = at::full({count}, rank == 0 ? 1.0F : 3.0F);
      Contribution tensor{values.mutable_data_ptr<float>(), static_cast<std::uint64_t>(count),
                          &block_coding(BlockCodec::int4), &block_coding(BlockCodec::int4)};
      EXPECT_EQ(reduce(wire, tensor, 2).power[0], 5.0F);
    });
  }
}

/// Every rank and every owner sends its largest values; the rest waits for a later step.
TEST(TwoPhase, SparseCodecsWithFeedbackSendEverythingInTheEnd) {
  constexpr std::int64_t kCount = 4096;
  for (const char* text : {"topk:0.05", "topk:64/1024:int8", "randomk:1/16", "threshold:5"}) {
    const CodecPtr codec = make_codec(text);
    for (const int world : {2, 3}) {
      std::vector<at::Tensor> means(static_cast<std::size_t>(world));
      run_ranks(world, [&](const BackendPtr& backend, int rank) {
        means[static_cast<std::size_t>(rank)] =
            mean_of_steps(backend, kCount, 600, *codec, [&](const Outcome& outcome, const at::Tensor& values) {
              EXPECT_TRUE(outcome.finite);
              EXPECT_LT(values.count_nonzero().item<std::int64_t>(), kCount / 5);
            });
      });
      at::Tensor expected = at::zeros({kCount});
      for (int rank = 0; rank < world; ++rank) expected += gradient_of(rank, kCount) / world;
      for (const at::Tensor& mean : means) {
        EXPECT_TRUE(at::equal(mean, means[0])) << "replicas differ";
        EXPECT_LT((mean - expected).abs().max().item<double>(), 0.4) << text << " of " << world;
      }
    }
  }
}

/// Ranks disagree for example where one of them went on from another checkpoint.
TEST(TwoPhase, RanksThatDisagreeAreTold) {
  run_ranks(3, [&](const BackendPtr& backend, int rank) {
    Wire wire(backend, kTimeoutOfSums);
    PhaseSeconds seconds;
    TwoPhase two_phase(wire, seconds);
    at::Tensor values = gradient_of(rank, 1000);
    const Contribution tensor{values.mutable_data_ptr<float>(), 1000, &block_coding(BlockCodec::int4),
                              &block_coding(BlockCodec::int4)};
    const std::uint64_t digest = rank == 1 ? 1 : 0;
    try {
      two_phase.run({{}, {tensor}, 3, digest});
      ADD_FAILURE() << "rank " << rank << " took what did not fit";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::communication);
      EXPECT_NE(std::string(error.what()).find("another step, plan or model"), std::string::npos) << error.what();
    }
    EXPECT_TRUE(at::equal(values, gradient_of(rank, 1000)));
  });
}

/// Checks that rank 1 gets an error for a bit that flips in one of its transfers, up or down, before its tensor
/// changes.
void expect_flip_is_seen(const Codec& up, const Codec& down, std::int64_t count, int transfer, std::int64_t bit) {
  run_ranks(2, [&](const BackendPtr& backend, int rank) {
    Wire wire(c10::make_intrusive<thread_ranks::FlippedBit>(backend, rank == 1 ? transfer : -1, bit), kTimeoutOfSums);
    PhaseSeconds seconds;
    TwoPhase two_phase(wire, seconds);
    at::Tensor values = gradient_of(rank, count);
    two_phase.begin({{}, {{values.mutable_data_ptr<float>(), static_cast<std::uint64_t>(count), &up, &down}}, 2});
    const auto fails = [&](auto call) {
      if (rank == 0) return call(), void();
      try {
        call();
        ADD_FAILURE() << up.text() << ": bit " << bit << " of transfer " << transfer << " was taken";
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::communication);
      }
      EXPECT_TRUE(at::equal(values, gradient_of(rank, count)));
    };
    if (transfer == 0 && rank == 0) return;  // stops here, as the other rank will
    if (transfer == 0) return fails([&] { two_phase.advance(); });
    two_phase.advance();
    fails([&] { two_phase.finish(); });
  });
}

/// Flips every bit of a small message, and one bit of a large one whose parts several threads add up.
TEST(TwoPhase, AFlippedBitIsAnErrorAndReachesNoTensor) {
  const Codec& int4 = block_coding(BlockCodec::int4);
  for (const int transfer : {0, 1}) {
    for (std::int64_t bit = 0; bit < 8 * 60; ++bit) expect_flip_is_seen(int4, int4, 260, transfer, bit);
    expect_flip_is_seen(int4, int4, 1 << 21, transfer, 8 * 300'000);
  }
}

/// Flips a bit of a scale, or of one of few values that stand for many. The codecs include some that leave no error.
TEST(TwoPhase, AFlippedBitOfCodesThatLeaveNoErrorIsSeen) {
  for (const char* text : {"sign-vote", "randomk:0.25:unbiased"}) {
    const Plan plan = Plan::parse(text);
    const auto [up, down] = plan.general.at(1);
    ASSERT_FALSE(up->traits().leaves_error && down->traits().leaves_error) << text;
    expect_flip_is_seen(*up, *down, 260, 0, 8 * 22);  // behind the header and the power
    expect_flip_is_seen(*up, *down, 260, 1, 8 * 18);
  }
}

TEST(TwoPhase, CountsTheBytesItHandsOver) {
  const BlockCoding signs(BlockCodec::sign, 1U << 18);
  run_ranks(2, [&](const BackendPtr& backend, int) {
    Wire wire(backend, kTimeoutOfSums);
    at::Tensor values = at::ones({1 << 16});
    Contribution tensor{values.mutable_data_ptr<float>(), 1 << 16, &signs, &signs};
    reduce(wire, tensor, 2);
    // each way half of 2^16 bits, one scale and a header; upwards also the gradient's power
    EXPECT_EQ(wire.sent_bytes(), 2U * (4096 + 4 + 16) + 4);
  });
}

}  // namespace

}  // namespace octavo
