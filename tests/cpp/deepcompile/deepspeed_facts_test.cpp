// SPDX-License-Identifier: Apache-2.0
// How a step works under DeepSpeed, as programs that were written for it expect. Other tests of such expectations are
// in zero3_executor_test.cpp (from a gather to the last use) and pinned_test.cpp (page-locked memory).
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

#include "octavo/deepcompile/engine.h"
#include "tests/cpp/ranks.h"
#include "tests/cpp/refusal.h"
#include "tests/cpp/zero_rank.h"

namespace octavo {

namespace {

using thread_ranks::BackendPtr;
using thread_ranks::run_ranks;
constexpr long kOnlyGraph = ZeroRank::kGraph;

/// A shard has the same number of elements on all ranks. The surplus is at the end of the last one and is never read.
TEST(DeepSpeedFacts, ShardsMayBePadded) {
  run_ranks(3, [](const BackendPtr& backend, int rank) {
    dc::Engine engine(process_group_of(backend), backend, 1000);
    const at::Tensor whole = at::arange(7.0, at::kFloat);
    const at::Tensor shard = at::full({3}, std::numeric_limits<float>::quiet_NaN()), gradient = at::empty({3});
    const std::int64_t count = rank == 2 ? 1 : 3;
    shard.narrow(0, 0, count).copy_(whole.narrow(0, 3 * rank, count));
    engine.register_z3_param(0, {7, 1}, shard, gradient, false);
    engine.register_graph_z3(kOnlyGraph, {0});
    const at::Tensor gathered = engine.wait_allgather(engine.allgather_param(kOnlyGraph, 0), kOnlyGraph, 0);
    EXPECT_TRUE(at::equal(gathered, whole.view({7, 1})));
    engine.start_backward(true);
    engine.reduce_grad(gathered, kOnlyGraph, 0);
    engine.release_param(kOnlyGraph, 0, 1);
    engine.end_backward(kOnlyGraph);
    EXPECT_TRUE(at::equal(gradient.narrow(0, 0, count), whole.narrow(0, 3 * rank, count)));
    EXPECT_TRUE(gradient.narrow(0, count, 3 - count).eq(0).all().item<bool>());
  });
}

TEST(DeepSpeedFacts, Stage1SumsUpBeforeItReducesAndTheOthersAfterwards) {
  for (const int stage : {1, 2, 3}) {
    run_ranks(2, [&](const BackendPtr& backend, int rank) {
      ZeroRank own(backend, stage, {{33, 10}});
      const at::Tensor gradient = own.whole(0) * (rank + 1), mean = own.own(own.whole(0) * 1.5);
      own.backward({gradient}, false);
      const auto& local = own.engine.param_registry->accumulation().local;
      EXPECT_EQ(local.contains(0), stage == 1);
      EXPECT_EQ(own.engine.sent_bytes() == 0, stage == 1);
      if (stage == 1) {
        EXPECT_TRUE(at::equal(local.at(0), gradient));
      } else {
        EXPECT_TRUE(at::allclose(own.gradients[0], mean));
      }
      own.backward({gradient}, true);
      EXPECT_FALSE(local.contains(0));
      EXPECT_TRUE(at::allclose(own.gradients[0], mean * 2));
    });
  }
}

TEST(DeepSpeedFacts, GradientBuffersAreBoundBeforeTheBackwardPassAndReleasedAfterTheStep) {
  run_ranks(2, [](const BackendPtr& backend, int) {
    ZeroRank own(backend, 1, {{33, 10}});
    for (int step = 0; step < 2; ++step) {
      own.engine.update_param_grad_buffer(0, {});
      own.backward({own.whole(0)}, false);  // this backward pass reduces nothing
      const at::Tensor bound = at::empty_like(own.gradients[0]);
      own.engine.update_param_grad_buffer(0, bound);
      own.backward({own.whole(0)}, true);
      EXPECT_TRUE(at::allclose(bound, own.own(own.whole(0) * 2)));
    }
    EXPECT_NE(refusal_of([&] { own.engine.update_param_grad_buffer(0, at::zeros({9999})); }).find("parameter 0"),
              std::string::npos);
  });
}

TEST(DeepSpeedFacts, BucketsAreReleasedAfterTheLastGraphAlone) {
  run_ranks(1, [](const BackendPtr& backend, int) {
    ZeroRank own(backend, 2, {{7}, {5}});
    own.engine.register_graph_z2(1, {1});
    const auto bucket = own.engine.reduce_buckets->getBuffer(at::kFloat);
    own.engine.start_backward(true);
    own.engine.reduce_grad(own.whole(1), 1, 1);
    own.reduce({own.whole(0)});
    own.engine.end_backward(1);
    // this bucket is filled while the first one is sent
    const auto other = own.engine.reduce_buckets->getBuffer(at::kFloat);
    EXPECT_NE(other, bucket);
    own.engine.end_backward(kOnlyGraph, true);
    EXPECT_TRUE(at::allclose(own.gradients[0], own.whole(0)));
    EXPECT_TRUE(at::allclose(own.gradients[1], own.whole(1)));
    const auto released = own.engine.reduce_buckets->getBuffer(at::kFloat);
    EXPECT_NE(released, bucket);
    EXPECT_NE(released, other);
  });
}

TEST(DeepSpeedFacts, APersistentParameterIsGatheredOnceForAllMicroBatchesOfAStep) {
  run_ranks(2, [](const BackendPtr& backend, int) {
    ZeroRank own(backend, 3, {{33, 10}, {7}});
    own.engine.set_persistent(0);
    const void* memory = nullptr;
    for (int step = 0; step < 3; ++step) {
      std::uint64_t sent_after_first = 0;
      for (const bool update : {false, false, true}) {
        for (const char* pass : {"forward", "backward"}) {
          const std::uint64_t before = own.engine.sent_bytes();
          const auto fresh = own.engine.allgather_params_fused(kOnlyGraph, {0});
          own.engine.wait_params(fresh, kOnlyGraph, {0});
          EXPECT_TRUE(at::equal(fresh[0], own.whole(0, step))) << pass;
          fresh[0].fill_(-1);
          EXPECT_EQ(own.engine.sent_bytes() == before, sent_after_first > 0) << pass;
          sent_after_first = own.engine.sent_bytes();
          const void* kept = own.engine.param_registry->getGatheredParam(0).const_data_ptr();
          EXPECT_TRUE(memory == nullptr || memory == kept);
          memory = kept;
        }
        own.backward({own.whole(0)}, update);
      }
      own.values[0].copy_(own.own(own.whole(0, step + 1)));
    }
  });
}

TEST(DeepSpeedFacts, NumbersOfParametersHave64BitsAndBelongToAnEngine) {
  run_ranks(2, [](const BackendPtr& backend, int) {
    constexpr long kLarge = (1L << 40) + 3;
    std::vector<at::Tensor> shards;
    std::vector<std::unique_ptr<dc::Engine>> engines;
    for (const double value : {1.0, 2.0}) {
      engines.push_back(std::make_unique<dc::Engine>(process_group_of(backend), backend, 1000));
      shards.push_back(at::full({2}, value));
      engines.back()->register_z3_param(kLarge, {4}, shards.back(), {}, false);
      engines.back()->register_graph_z3(kLarge + 1, {kLarge});
    }
    for (std::size_t i = 0; i < 2; ++i) {
      const at::Tensor whole = engines[i]->allgather_param(kLarge + 1, kLarge);
      EXPECT_TRUE(at::equal(engines[i]->wait_allgather(whole, kLarge + 1, kLarge), at::full({4}, i + 1.0)));
    }
  });
}

TEST(DeepSpeedFacts, WhilePassesAreMeasuredNothingIsReducedOrFreedAndGathersRun) {
  run_ranks(2, [](const BackendPtr& backend, int) {
    ZeroRank own(backend, 3, {{33, 10}});
    own.engine.flags->profile = true;
    own.gradients[0].fill_(5);
    own.engine.start_backward(true);
    EXPECT_EQ(own.engine.reduce_grad(own.whole(0), kOnlyGraph, 0).numel(), 0);
    EXPECT_FALSE(own.engine.reduce_grad({}, kOnlyGraph, 0).defined());
    own.engine.end_backward(kOnlyGraph);
    EXPECT_TRUE(own.gradients[0].eq(5).all().item<bool>());
    const at::Tensor large = at::ones({1 << 22});
    own.engine.free_tensors({large});
    EXPECT_EQ(large.numel(), 1 << 22);
    EXPECT_TRUE(own.engine.wait_reload(large, kOnlyGraph, 1).is_same(large));  // the value was never sent to the host
    for (int again = 0; again < 2; ++again) {
      EXPECT_TRUE(at::equal(own.gathered(0), own.whole(0)));
      own.engine.invalidate_gathered_param(0);
      EXPECT_EQ(own.engine.param_registry->state(0), dc::Gathered::released);
    }
    own.engine.flags->profile = false;
    EXPECT_THROW(own.engine.wait_reload(large, kOnlyGraph, 1), Error);
  });
}

TEST(DeepSpeedFacts, WhatIsGatheredCanBeClearedAndGraphsForgotten) {
  run_ranks(2, [](const BackendPtr& backend, int) {
    ZeroRank own(backend, 3, {{33, 10}, {7}, {5}});
    own.engine.set_persistent(1);
    own.engine.prefetch_params_fused(kOnlyGraph, own.ids);
    own.gathered(0);
    own.engine.clear_all_gathered_params();
    const auto& registry = *own.engine.param_registry;
    for (const long id : own.ids) EXPECT_FALSE(registry.isValid(id));
    EXPECT_EQ(registry.state(0), dc::Gathered::released);
    EXPECT_EQ(registry.state(1), dc::Gathered::available);  // its memory is kept
    EXPECT_EQ(registry.state(2), dc::Gathered::released);

    own.engine.allgather_params_fused(kOnlyGraph, own.ids);
    own.engine.reset();
    EXPECT_TRUE(own.engine.executors.empty());
    own.engine.clear_all_gathered_params();
    own.engine.register_graph_z3(kOnlyGraph, own.ids);
    for (const long id : own.ids) EXPECT_TRUE(at::equal(own.gathered(id), own.whole(id)));
    own.backward({own.whole(0)}, true);
    EXPECT_TRUE(at::allclose(own.gradients[0], own.own(own.whole(0))));
  });
}

}  // namespace

}  // namespace octavo
