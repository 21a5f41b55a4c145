// SPDX-License-Identifier: Apache-2.0
// ZeRO-1 and ZeRO-2: every rank gets the averages of what it owns, whatever graphs there are.
#include "octavo/deepcompile/zero_executors.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <memory>
#include <string>
#include <vector>

#include "octavo/kernels/error.h"
#include "tests/cpp/ranks.h"
#include "tests/cpp/refusal.h"

namespace octavo {

namespace {

using thread_ranks::BackendPtr;
using thread_ranks::run_ranks;

const std::vector<std::vector<std::int64_t>> kShapes = {{33, 10}, {7}, {}, {64, 64}, {1, 3}, {129}};
constexpr long kShared = 3;  // used by both graphs
constexpr long kUnused = 4;  // not used in the last micro-batch

/// Returns a rank's gradient of a parameter in one graph.
at::Tensor gradient_of(long id, int rank, int graph, int batch, at::ScalarType dtype = at::kFloat) {
  const auto& shape = kShapes[static_cast<std::size_t>(id)];
  const std::int64_t count = at::empty(shape).numel();
  const at::Tensor flat = at::arange(count, at::kDouble) * (31 * (rank + 1)) + 7 * id + 3 * graph + batch;
  return (at::remainder(flat, 97) / 48.5 - 1).to(dtype).view(shape);
}

/// A rank with two graphs, of the parameters 0 to 3 and 3 to 5.
template <class Executor>
class ZeroRank {
 public:
  ZeroRank(const BackendPtr& backend, const char* plan, bool is_double, std::int64_t bucket_elements = 500)
      : rank_(backend->getRank()), world_(backend->getSize()) {
    std::vector<dc::SummedParam> params;
    for (std::size_t i = 0; i < kShapes.size(); ++i) {
      params.push_back({static_cast<long>(i), "parameter" + std::to_string(i), kShapes[i], kShapes[i].size() < 2});
    }
    const auto sum = std::make_shared<dc::GradientSum>(
        std::make_unique<Wire>(backend, std::chrono::milliseconds(20000)), Plan::parse(plan), params);
    for (const dc::SummedParam& param : params) {
      const at::Tensor values = at::zeros(param.shape);
      own.push_back(sum->owned(param.id));
      const at::Tensor buffer = at::empty({static_cast<std::int64_t>(own.back().count)});
      registry->registerParam(param.id, param.shape, values, buffer, false, static_cast<std::int64_t>(own.back().first),
                              false);
    }
    const auto buckets = std::make_shared<dc::DoubleBufferedReduceBucket>(bucket_elements, is_double);
    const auto group = c10::make_intrusive<c10d::ProcessGroup>(rank_, world_);
    const c10::Stream stream(c10::Stream::DEFAULT, c10::DeviceType::CPU);
    for (const auto& ids : {std::vector<long>{0, 1, 2, kShared}, {kShared, kUnused, 5}}) {
      graphs.push_back(std::make_unique<Executor>(group, registry, buckets, ids, stream, stream, sum));
      ids_.push_back(ids);
    }
    sum_ = sum;
  }

  /// `interleaved`: the first graph reduces its gradients before the second one ends, as with a graph break.
  void backward(int batch, int batches, at::ScalarType dtype = at::kFloat, bool interleaved = false) {
    const bool is_last = batch == batches - 1;
    sum_->begin_pass();
    for (auto& graph : graphs) graph->startBackward(is_last);
    for (std::size_t g = graphs.size(); g-- > 0;) {
      for (const long id : ids_[g]) {
        const bool is_missing = id == kUnused && is_last && batches > 1;
        const at::Tensor gradient =
            is_missing ? at::Tensor() : gradient_of(id, rank_, static_cast<int>(g), batch, dtype);
        if (gives && id % 2 == 0) {  // the other gradients are copied to the same bucket
          graphs[g]->takeGrad(gradient, id);
        } else {
          graphs[g]->reduceGrad(gradient, id);
        }
      }
      if (!interleaved) graphs[g]->endBackward();
    }
    if (!interleaved) return;
    for (auto& graph : graphs) graph->endBackward();
  }

  /// Returns the sums over batches and graphs of the ranks' averages, of the part that this rank owns.
  at::Tensor expected(long id, int batches, at::ScalarType dtype = at::kFloat) const {
    at::Tensor sum = at::zeros(kShapes[static_cast<std::size_t>(id)]);
    for (int batch = 0; batch < batches; ++batch) {
      for (std::size_t g = 0; g < ids_.size(); ++g) {
        if (std::find(ids_[g].begin(), ids_[g].end(), id) == ids_[g].end()) continue;
        if (id == kUnused && batches > 1 && batch == batches - 1) continue;
        for (int r = 0; r < world_; ++r) sum += gradient_of(id, r, static_cast<int>(g), batch, dtype);
      }
    }
    const Range part = own[static_cast<std::size_t>(id)];
    return (sum / world_)
        .flatten()
        .narrow(0, static_cast<std::int64_t>(part.first), static_cast<std::int64_t>(part.count));
  }
  at::Tensor got(long id) const { return registry->getParam(id).getGradBuffer(); }
  std::uint64_t sent_bytes() const { return sum_->compressor().stats().wire_bytes; }
  void next_step() { registry->accumulation().forget_reduced(); }

  std::shared_ptr<dc::DSParamRegistry> registry = std::make_shared<dc::DSParamRegistry>();
  std::vector<std::unique_ptr<dc::CustomOpExecutor>> graphs;
  std::vector<Range> own;
  bool gives = false;  // whether gradients are given away, to be sent from where they are

 private:
  int rank_, world_;
  std::vector<std::vector<long>> ids_;
  std::shared_ptr<dc::GradientSum> sum_;
};

template <class Executor>
class ZeroExecutorsTest : public testing::Test {};
using Stages = testing::Types<dc::Z1CustomOpExecutor, dc::Z2CustomOpExecutor>;
TYPED_TEST_SUITE(ZeroExecutorsTest, Stages);

TYPED_TEST(ZeroExecutorsTest, NeedAllThatTheyAreGiven) {
  const auto group = c10::make_intrusive<c10d::ProcessGroup>(0, 1);
  const c10::Stream stream(c10::Stream::DEFAULT, c10::DeviceType::CPU);
  const auto registry = std::make_shared<dc::DSParamRegistry>();
  const auto buckets = std::make_shared<dc::DoubleBufferedReduceBucket>(10, true);
  const auto flags = std::make_shared<const dc::Flags>();
  using Group = c10::intrusive_ptr<c10d::ProcessGroup>;
  const auto is_missed = [&](const char* what, const Group& of, const auto& given_registry, const auto& given_buckets,
                             const auto& given_flags) {
    const std::string refusal =
        refusal_of([&] { TypeParam(of, given_registry, given_buckets, {}, stream, stream, nullptr, given_flags); });
    return refusal.find(std::string("expected ") + what + ", got none") != std::string::npos;
  };
  EXPECT_TRUE(is_missed("a process group", Group(), registry, buckets, flags));
  EXPECT_TRUE(is_missed("a registry of parameters", group, nullptr, buckets, flags));
  EXPECT_TRUE(is_missed("buckets of gradients", group, registry, nullptr, flags));
  EXPECT_TRUE(is_missed("flags", group, registry, buckets, nullptr));
  EXPECT_TRUE(is_missed("a sum of gradients", group, registry, buckets, flags));
}

TYPED_TEST(ZeroExecutorsTest, EveryRankGetsTheAveragesOfItsPart) {
  for (const bool is_double : {true, false}) {
    for (int world = 1; world <= 4; ++world) {
      for (const int batches : {1, 4}) {
        run_ranks(world, [&](const BackendPtr& backend, int rank) {
          ZeroRank<TypeParam> own(backend, "dense", is_double);
          for (int step = 0; step < 2; ++step) {
            for (int batch = 0; batch < batches; ++batch) own.backward(batch, batches);
            for (long id = 0; id < static_cast<long>(kShapes.size()); ++id) {
              EXPECT_TRUE(at::allclose(own.got(id), own.expected(id, batches), 1e-5, 1e-6))
                  << "parameter " << id << " rank " << rank << " of " << world << ", step " << step;
            }
            own.next_step();
          }
        });
      }
    }
  }
}

TYPED_TEST(ZeroExecutorsTest, GraphsFillTheSameBucketsByTurns) {
  for (const std::int64_t bucket_elements : {100, 500, 100000}) {
    run_ranks(2, [&](const BackendPtr& backend, int rank) {
      ZeroRank<TypeParam> own(backend, "dense", true, bucket_elements);
      own.backward(0, 1, at::kFloat, /*interleaved=*/true);
      for (long id = 0; id < static_cast<long>(kShapes.size()); ++id) {
        EXPECT_TRUE(at::allclose(own.got(id), own.expected(id, 1), 1e-5, 1e-6))
            << "parameter " << id << " rank " << rank;
      }
    });
  }
}

TYPED_TEST(ZeroExecutorsTest, GradientsThatAreGivenAreSentFromWhereTheyLie) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    for (const char* plan : {"dense", "int8"}) {
      for (const int batches : {1, 4}) {
        run_ranks(2, [&](const BackendPtr& backend, int) {
          ZeroRank<TypeParam> copied(backend, plan, true), given(backend, plan, true);
          given.gives = true;
          for (auto* const own : {&copied, &given}) {
            for (int batch = 0; batch < batches; ++batch) own->backward(batch, batches, dtype);
          }
          for (long id = 0; id < static_cast<long>(kShapes.size()); ++id) {
            EXPECT_TRUE(given.got(id).equal(copied.got(id))) << "parameter " << id;
          }
        });
      }
    }
  }
}

TYPED_TEST(ZeroExecutorsTest, HalfOfAnAllReduceIsSent) {
  run_ranks(2, [&](const BackendPtr& backend, int) {
    ZeroRank<TypeParam> own(backend, "dense", true, /*bucket_elements=*/100000);
    own.backward(0, 1);
    std::uint64_t others = 0, all = 0;
    for (std::size_t i = 0; i < kShapes.size(); ++i) {
      const auto count = static_cast<std::uint64_t>(at::empty(kShapes[i]).numel()) * (i == kShared ? 2 : 1);
      all += count;
      others += count - own.own[i].count * (i == kShared ? 2 : 1);
    }
    EXPECT_GE(own.sent_bytes(), 4 * others);
    EXPECT_LE(own.sent_bytes(), 4 * others + 256);  // 256 bytes for the headers
    EXPECT_LT(own.sent_bytes(), 4 * all * 52 / 100);
  });
}

TYPED_TEST(ZeroExecutorsTest, SharesAreEqualAndTogetherTheWhole) {
  for (const int world : {1, 2, 3, 4}) {
    std::vector<std::vector<Range>> of_rank(static_cast<std::size_t>(world));
    run_ranks(world, [&](const BackendPtr& backend, int rank) {
      of_rank[static_cast<std::size_t>(rank)] = ZeroRank<TypeParam>(backend, "dense", true).own;
    });
    for (std::size_t i = 0; i < kShapes.size(); ++i) {
      const auto count = static_cast<std::uint64_t>(at::empty(kShapes[i]).numel());
      const std::uint64_t share = (count + static_cast<unsigned>(world) - 1) / static_cast<unsigned>(world);
      std::uint64_t next = 0;
      for (const auto& ranges : of_rank) {
        EXPECT_EQ(ranges[i].first, next);
        EXPECT_EQ(ranges[i].count, std::min(share, count - next));
        next += ranges[i].count;
      }
      EXPECT_EQ(next, count);
    }
  }
}

TYPED_TEST(ZeroExecutorsTest, GradientsInBfloat16TravelAsTheyAre) {
  run_ranks(2, [&](const BackendPtr& backend, int) {
    ZeroRank<TypeParam> own(backend, "dense", true);
    own.backward(0, 1, at::kBFloat16);
    for (long id = 0; id < static_cast<long>(kShapes.size()); ++id) {
      // a sum of two, rounded once; for the shared parameter, the sum of both graphs' sums
      EXPECT_TRUE(at::allclose(own.got(id), own.expected(id, 1, at::kBFloat16), 1.0 / 128, 1.0 / 128));
    }
  });
}

TYPED_TEST(ZeroExecutorsTest, APlanCompressesWhatIsReduced) {
  for (const int world : {2, 3}) {
    run_ranks(world, [&](const BackendPtr& backend, int) {
      ZeroRank<TypeParam> coarse(backend, "int8:64", true);
      coarse.backward(0, 1);
      bool all_equal = true;
      for (long id = 0; id < static_cast<long>(kShapes.size()); ++id) {
        const at::Tensor expected = coarse.expected(id, 1);
        EXPECT_TRUE(at::allclose(coarse.got(id), expected, 0, 0.02));
        all_equal &= at::allclose(coarse.got(id), expected, 1e-5, 1e-6);
      }
      EXPECT_FALSE(all_equal);
    });
  }
}

/// What one step leaves out, the next ones send: the mean over steps comes close, also for the parameter of two graphs.
TYPED_TEST(ZeroExecutorsTest, ErrorFeedbackBelongsToTheOwnersShards) {
  constexpr int kSteps = 20;
  run_ranks(2, [&](const BackendPtr& backend, int) {
    std::vector<double> errors;
    for (const char* plan : {"int2:64", "int2:64+ef"}) {
      ZeroRank<TypeParam> own(backend, plan, true);
      double error = 0;
      std::vector<at::Tensor> sums(kShapes.size());
      for (int step = 0; step < kSteps; ++step) {
        own.backward(0, 1);
        for (std::size_t i = 0; i < kShapes.size(); ++i) {
          const at::Tensor got = own.got(static_cast<long>(i));
          sums[i] = step == 0 ? got.clone() : sums[i].add_(got);
        }
        own.next_step();
      }
      for (const long id : {0L, kShared}) {
        const at::Tensor mean = sums[static_cast<std::size_t>(id)] / kSteps;
        error += (mean - own.expected(id, 1)).norm().template item<double>();
      }
      errors.push_back(error);
    }
    EXPECT_LT(errors[1], 0.25 * errors[0]);
  });
}

TYPED_TEST(ZeroExecutorsTest, AGradientThatDoesNotFitIsRefusedInEachMicroBatch) {
  run_ranks(1, [&](const BackendPtr& backend, int) {
    ZeroRank<TypeParam> own(backend, "dense", true);
    for (auto& graph : own.graphs) graph->startBackward(/*update=*/false);
    own.graphs[0]->takeGrad(gradient_of(0, 0, 0, 0, at::kFloat), 0);
    for (const long id : {0L, 1L}) {
      EXPECT_NE(refusal_of([&] { own.graphs[0]->takeGrad(at::ones({1}), id); }).find("got Float[1]"),
                std::string::npos);
      EXPECT_NE(refusal_of([&] { own.graphs[0]->reduceGrad(at::ones({1}), id); }).find("got Float[1]"),
                std::string::npos);
    }
  });
}

TYPED_TEST(ZeroExecutorsTest, ABufferThatIsMissingAndAnUnknownParameterAreNamed) {
  run_ranks(1, [&](const BackendPtr& backend, int) {
    ZeroRank<TypeParam> own(backend, "dense", true);
    own.registry->setGradBuffer(0, {});
    try {
      own.backward(0, 1);
      FAIL() << "expected an error";
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("the gradient buffer of parameter 0 with 330 elements"),
                std::string::npos)
          << error.what();
    }
  });
}

}  // namespace

}  // namespace octavo
