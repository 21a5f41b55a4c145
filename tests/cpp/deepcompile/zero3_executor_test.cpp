// SPDX-License-Identifier: Apache-2.0
// ZeRO-3: gathers whole parameters from shards, and reduces gradients to shards.
#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <memory>
#include <string>
#include <vector>

#include "octavo/codec/registry.h"
#include "octavo/deepcompile/memory_access.h"
#include "octavo/deepcompile/zero_executors.h"
#include "tests/cpp/ranks.h"
#include "tests/cpp/refusal.h"

namespace octavo {

namespace {

using thread_ranks::BackendPtr;
using thread_ranks::run_ranks;

const std::vector<std::vector<std::int64_t>> kWholeShapes = {{33, 10}, {7}, {}, {64, 64}, {1, 3}};
const std::vector<long> kAllIds = {0, 1, 2, 3, 4};
constexpr std::uint64_t kMostElements = 10000;
constexpr auto kGatherTimeout = std::chrono::milliseconds(20000);

at::Tensor whole_of(long id, int step = 0) {
  const auto& shape = kWholeShapes[static_cast<std::size_t>(id)];
  const at::Tensor flat = at::arange(at::empty(shape).numel(), at::kDouble) * 31 + 7 * id + step;
  return (at::remainder(flat, 97) / 48.5 - 1).to(at::kFloat).view(shape);
}

/// A rank with one graph that uses all parameters.
class Z3Rank {
 public:
  explicit Z3Rank(const BackendPtr& backend, CodecPtr codec = nullptr, std::uint64_t most_elements = kMostElements) {
    std::vector<dc::SummedParam> params;
    for (const long id : kAllIds) {
      params.push_back({id, "parameter" + std::to_string(id), kWholeShapes[static_cast<std::size_t>(id)]});
    }
    sum_ = std::make_shared<dc::GradientSum>(std::make_unique<Wire>(backend, kGatherTimeout), Plan::parse("dense"),
                                             params);
    for (const dc::SummedParam& param : params) {
      const at::Tensor shard = shard_of(param.id, 0).clone();
      registry->registerParam(param.id, param.shape, shard, at::empty_like(shard), true, 0, false);
    }
    gather = std::make_shared<dc::ParamGather>(std::make_unique<Wire>(backend, kGatherTimeout), registry, most_elements,
                                               std::move(codec));
    const auto group = c10::make_intrusive<c10d::ProcessGroup>(backend->getRank(), backend->getSize());
    const c10::Stream stream(c10::Stream::DEFAULT, c10::DeviceType::CPU);
    graph = std::make_unique<dc::Z3CustomOpExecutor>(
        group, registry, std::make_shared<dc::DoubleBufferedReduceBucket>(1000, true), kAllIds, stream, stream, sum_,
        gather, std::make_shared<dc::FreshGather>(gather, registry));
  }

  at::Tensor shard_of(long id, int step) const {
    const Range own = sum_->owned(id);
    return whole_of(id, step).flatten().narrow(0, static_cast<std::int64_t>(own.first),
                                               static_cast<std::int64_t>(own.count));
  }
  void update(int step) const {
    for (const long id : kAllIds) registry->getParam(id).getDSTensor().copy_(shard_of(id, step));
  }
  at::Tensor gathered(long id) const { return graph->waitAllgather(graph->allgatherParam(id), id); }
  void backward(bool update) {
    sum_->begin_pass();
    graph->startBackward(update);
    for (const long id : kAllIds) graph->reduceGrad(whole_of(id), id);
    graph->endBackward();
  }

  std::shared_ptr<dc::DSParamRegistry> registry = std::make_shared<dc::DSParamRegistry>();
  std::shared_ptr<dc::ParamGather> gather;
  std::unique_ptr<dc::Z3CustomOpExecutor> graph;

 private:
  std::shared_ptr<dc::GradientSum> sum_;
};

TEST(Z3ExecutorTest, AParameterIsWholeFromItsGatherToItsLastUse) {
  for (int world = 1; world <= 4; ++world) {
    run_ranks(world, [&](const BackendPtr& backend, int) {
      Z3Rank own(backend);
      for (int step = 0; step < 3; ++step) {
        own.update(step);
        for (const long id : kAllIds) {
          const at::Tensor whole = own.gathered(id);
          EXPECT_TRUE(at::equal(whole, whole_of(id, step))) << "parameter " << id << " of " << world << " ranks";
          EXPECT_EQ(own.registry->state(id), dc::Gathered::available);
          own.graph->releaseParam(id, 2);
          EXPECT_TRUE(own.registry->hasGatheredParam(id));
          own.graph->releaseParam(id, 2);
          EXPECT_EQ(own.registry->state(id), dc::Gathered::released);
          EXPECT_FALSE(own.registry->hasGatheredParam(id));
        }
        own.backward(true);
        for (const long id : kAllIds) {  // the ranks' gradients are equal
          EXPECT_TRUE(at::allclose(own.registry->getParam(id).getGradBuffer(), own.shard_of(id, 0)));
        }
        own.registry->accumulation().forget_reduced();
      }
    });
  }
}

TEST(Z3ExecutorTest, SeveralTravelTogetherAndSeveralTransfersAtOnce) {
  run_ranks(3, [](const BackendPtr& backend, int) {
    Z3Rank own(backend);
    own.graph->prefetchParamsFused({0, 1});
    own.graph->prefetchParamsFused({1, 2, 3});  // parameter 1 is already being gathered
    const std::uint64_t sent = own.gather->sent_bytes();
    EXPECT_EQ(own.registry->state(1), dc::Gathered::in_flight);
    for (const long id : {3L, 2L, 1L, 0L}) EXPECT_TRUE(at::equal(own.gathered(id), whole_of(id)));
    EXPECT_EQ(own.gather->sent_bytes(), sent);
    EXPECT_EQ(own.registry->state(4), dc::Gathered::sharded);
  });
}

/// Messages have a room on other ranks, and their buffers stay: a gather of a whole model must not be one transfer.
TEST(Z3ExecutorTest, ManyElementsAreSeveralTransfers) {
  run_ranks(2, [](const BackendPtr& backend, int) {
    Z3Rank own(backend, nullptr, /*most_elements=*/338);
    own.graph->prefetchParamsFused(kAllIds);  // 330 + 7 + 1, 4096 and 3 elements
    EXPECT_EQ(own.registry->state(0), dc::Gathered::available);
    EXPECT_EQ(own.registry->state(2), dc::Gathered::available);
    EXPECT_EQ(own.registry->state(3), dc::Gathered::in_flight);
    EXPECT_EQ(own.registry->state(4), dc::Gathered::in_flight);
    for (const long id : kAllIds) EXPECT_TRUE(at::equal(own.gathered(id), whole_of(id)));
  });
}

/// A gather that nobody waits for, such as one for a branch that is not taken, holds a place in memory that ranks
/// share.
TEST(Z3ExecutorTest, AGatherThatNobodyWaitsForEndsWithLaterOnes) {
  run_ranks(2, [](const BackendPtr& backend, int) {
    Z3Rank own(backend);
    own.graph->prefetchParamsFused({4});
    for (int later = 0; later < 64; ++later) {
      EXPECT_EQ(own.registry->state(4), dc::Gathered::in_flight) << later;
      own.gathered(1);
      own.graph->releaseParam(1, 1);
    }
    own.gathered(1);
    EXPECT_EQ(own.registry->state(4), dc::Gathered::available);
    EXPECT_TRUE(at::equal(own.gathered(4), whole_of(4)));
  });
}

TEST(Z3ExecutorTest, APersistentParameterIsGatheredOnceForAStep) {
  run_ranks(2, [](const BackendPtr& backend, int) {
    Z3Rank own(backend);
    own.registry->setPersistent(3, true);
    const at::Tensor kept = own.gathered(3);
    own.graph->releaseParam(3, 1);
    own.backward(false);  // the backward pass of a micro-batch
    const std::uint64_t sent = own.gather->sent_bytes();
    EXPECT_TRUE(own.gathered(3).is_alias_of(kept));
    EXPECT_EQ(own.gather->sent_bytes(), sent);
    own.graph->releaseParam(3, 1);
    own.backward(true);
    own.update(5);
    EXPECT_FALSE(own.registry->isValid(3));
    const at::Tensor next = own.gathered(3);
    EXPECT_TRUE(at::equal(next, whole_of(3, 5)));
    EXPECT_TRUE(next.is_alias_of(kept));
    EXPECT_GT(own.gather->sent_bytes(), sent);
  });
}

TEST(Z3ExecutorTest, WholeValuesHaveTheDtypeThatTheGraphAsksFor) {
  run_ranks(2, [](const BackendPtr& backend, int) {
    Z3Rank own(backend);
    const std::uint64_t before = own.gather->sent_bytes();
    const at::Tensor narrow = own.graph->allgatherParam(3, at::kBFloat16);
    const std::uint64_t sent = own.gather->sent_bytes() - before;
    EXPECT_LT(sent, 2U * 64 * 64 / 2 + 100);
    EXPECT_TRUE(at::equal(own.graph->waitAllgather(narrow, 3), whole_of(3).to(at::kBFloat16)));
    // the values are valid in another dtype than the next call asks for; below they are still being gathered
    EXPECT_TRUE(at::equal(own.gathered(3), whole_of(3)));
    own.graph->prefetchParamsFused({0});
    const at::Tensor cast = own.graph->allgatherParam(0, at::kBFloat16);
    EXPECT_TRUE(at::equal(own.graph->waitAllgather(cast, 0), whole_of(0).to(at::kBFloat16)));
  });
}

/// Graphs may want a parameter in bfloat16 and in float32. None gets values that another one's dtype has rounded.
TEST(Z3ExecutorTest, NoGraphGetsWhatAnotherOnesDtypeHasRounded) {
  run_ranks(2, [](const BackendPtr& backend, int) {
    Z3Rank own(backend);
    const auto fresh = [&](at::ScalarType dtype, long id) {
      const std::vector<at::Tensor> gathered = own.graph->allgatherParamsFused({id}, {dtype});
      own.graph->waitParams(gathered, {id});
      return gathered[0];
    };
    for (const bool is_persistent : {false, true}) {
      own.registry->setPersistent(0, is_persistent);
      own.registry->setPersistent(3, is_persistent);
      own.registry->invalidateAll();
      EXPECT_TRUE(at::equal(fresh(at::kBFloat16, 0), whole_of(0).to(at::kBFloat16)));
      EXPECT_TRUE(at::equal(fresh(at::kFloat, 0), whole_of(0)));
      EXPECT_TRUE(at::equal(fresh(at::kBFloat16, 0), whole_of(0).to(at::kBFloat16)));
      const std::vector<at::Tensor> narrow = own.graph->allgatherParamsFused({3}, {at::kBFloat16});
      const std::vector<at::Tensor> wide =
          own.graph->allgatherParamsFused({3}, {at::kFloat});  // while it is on its way
      own.graph->waitParams(narrow, {3});
      own.graph->waitParams(wide, {3});
      EXPECT_TRUE(at::equal(wide[0], whole_of(3)));
      EXPECT_TRUE(at::equal(narrow[0], whole_of(3).to(at::kBFloat16)));
      own.registry->invalidateAll();
      const std::vector<at::Tensor> both = own.graph->allgatherParamsFused({3, 3}, {at::kBFloat16, at::kFloat});
      own.graph->waitParams(both, {3, 3});
      EXPECT_TRUE(at::equal(both[0], narrow[0]) && at::equal(both[1], wide[0]));
      EXPECT_TRUE(at::equal(own.graph->waitAllgather(own.graph->allgatherParam(1, at::kBFloat16), 1),
                            whole_of(1).to(at::kBFloat16)));
      EXPECT_TRUE(at::equal(own.gathered(1), whole_of(1)));
    }
  });
}

TEST(Z3ExecutorTest, GathersOfAnEvaluationLeaveNothingThatCannotBeWrittenTo) {
  run_ranks(2, [](const BackendPtr& backend, int) {
    Z3Rank own(backend);
    for (int pass = 0; pass < 3; ++pass) {
      const c10::InferenceMode evaluates(pass < 2);
      const std::vector<at::Tensor> gathered = own.graph->allgatherParamsFused({0, 3}, {});
      own.graph->waitParams(gathered, {0, 3});
      EXPECT_TRUE(at::equal(gathered[1], whole_of(3)));
    }
  });
}

TEST(Z3ExecutorTest, CodesGiveAllRanksTheSameBits) {
  constexpr int kWorld = 3;
  std::vector<at::Tensor> got(kWorld);
  run_ranks(kWorld, [&](const BackendPtr& backend, int rank) {
    Z3Rank own(backend, make_codec("int8"));
    const std::uint64_t before = own.gather->sent_bytes();
    got[static_cast<std::size_t>(rank)] = own.gathered(3).clone();
    EXPECT_LT(own.gather->sent_bytes() - before, 64U * 64 / kWorld * 11 / 10 * (kWorld - 1));
  });
  EXPECT_TRUE(at::equal(got[0], got[1]));
  EXPECT_TRUE(at::equal(got[0], got[2]));
  EXPECT_FALSE(at::equal(got[0], whole_of(3)));
  EXPECT_TRUE(at::allclose(got[0], whole_of(3), 0, 0.01));
  run_ranks(1, [](const BackendPtr& backend, int) {
    for (const std::string text : {"topk:0.01", "int4:stochastic"}) {
      Z3Rank own(backend, make_codec(text));
      EXPECT_NE(refusal_of([&] { own.gathered(0); }).find("such as bf16, int8 or fp8, not by " + text),
                std::string::npos);
    }
  });
}

TEST(Z3ExecutorTest, AMissingWaitAUseAfterReleaseAndAStrangerAreNamed) {
  run_ranks(2, [](const BackendPtr& backend, int) {
    Z3Rank own(backend);
    EXPECT_NE(refusal_of([&] { own.graph->allgatherParam(9); }).find("parameter 9 does not belong to this graph"),
              std::string::npos);
    EXPECT_NE(refusal_of([&] { own.graph->waitAllgather({}, 0); }).find("parameter 0 is sharded"), std::string::npos);
    own.graph->allgatherParam(0);
    EXPECT_NE(refusal_of([&] { own.graph->releaseParam(0, 1); }).find("parameter 0 is being gathered: wait"),
              std::string::npos);
    EXPECT_TRUE(at::equal(own.gathered(0), whole_of(0)));
    own.graph->releaseParam(0, 1);
    EXPECT_NE(refusal_of([&] { own.graph->releaseParam(0, 1); }).find("parameter 0 is released"), std::string::npos);
    own.registry->setPersistent(3, true);  // a persistent parameter is not released, but it still must be waited for
    own.graph->allgatherParam(3);
    for (const long users : {1L, 2L}) {
      EXPECT_NE(refusal_of([&] { own.graph->releaseParam(3, users); }).find("parameter 3 is being gathered: wait"),
                std::string::npos);
    }
    EXPECT_TRUE(at::equal(own.gathered(3), whole_of(3)));
    own.graph->releaseParam(3, 1);
  });
}

TEST(Z3ExecutorTest, ReleasedMemoryIsFreedAndWhoReadsItIsTold) {
  if (!dc::can_forbid_access()) return;  // readers keep it with this torch
  run_ranks(2, [](const BackendPtr& backend, int) {
    Z3Rank own(backend);
    const at::Tensor whole = own.gathered(3), view = whole.t();
    own.graph->releaseParam(3, 1);
    EXPECT_EQ(whole.storage().nbytes(), 0U);
    for (const at::Tensor& read : {whole, view}) {
      try {
        read.sum();
        ADD_FAILURE() << "released values were read";
      } catch (const c10::Error& error) {
        EXPECT_NE(error.msg().find("parameter 3 was released"), std::string::npos) << error.msg();
      }
    }
    EXPECT_TRUE(at::equal(own.gathered(3), whole_of(3)));
  });
}

TEST(Z3ExecutorTest, MemoryThatAProgramHasGivenIsItsOwnAfterTheRelease) {
  run_ranks(2, [](const BackendPtr& backend, int) {
    Z3Rank own(backend);
    const at::Tensor given = at::empty(kWholeShapes[3]);
    own.registry->registerGatheredParam(3, given);
    EXPECT_TRUE(own.gathered(3).is_alias_of(given));
    own.graph->releaseParam(3, 1);
    EXPECT_TRUE(at::equal(given, whole_of(3)));
  });
}

/// The ranks' graphs gather different parameters.
TEST(Z3ExecutorTest, RanksThatGatherOtherParametersAreTold) {
  EXPECT_THROW(run_ranks(2,
                         [](const BackendPtr& backend, int rank) {
                           Z3Rank own(backend);
                           own.gathered(rank == 0 ? 0 : 4);
                         }),
               std::exception);
}

/// A rank that could not start one, such as for want of memory, starts it again.
TEST(Zero3Executor, AGatherThatWasRefusedDoesNotCount) {
  run_ranks(2, [&](const BackendPtr& backend, int rank) {
    auto registry = std::make_shared<dc::DSParamRegistry>();
    for (const long id : {0L, 1L})
      registry->registerParam(id, {2}, at::full({1}, rank, at::kFloat), {}, true, 0, false);
    dc::ParamGather gather(std::make_unique<Wire>(backend, kGatherTimeout), registry, kMostElements);
    if (rank == 1) {
      at::Tensor shard = registry->getParam(1).getDSTensor();
      const at::Tensor kept = shard.detach().clone();
      shard.set_data(at::empty({0}));
      EXPECT_NE(refusal_of([&] { gather.start(std::vector<long>{1, 0}); }).find("expected a shard"), std::string::npos);
      shard.set_data(kept);
    }
    gather.start(std::vector<long>{1, 0});
    gather.wait(0);
    EXPECT_TRUE(at::equal(registry->getGatheredParam(0), at::arange(2, at::kFloat)));
  });
}

/// The halves of these doubles look like NaNs as floats, which a multiplication by 1 changes.
TEST(Zero3Executor, DoublesAreGatheredToTheBit) {
  constexpr std::int64_t kElements = 129;
  at::Tensor bits = at::arange(kElements).mul(0x3F01'7F81'0001).add(0x7F80'0001);
  const at::Tensor whole = bits.view(at::kDouble).view({43, 3});
  for (const int world : {1, 2, 3}) {
    run_ranks(world, [&](const BackendPtr& backend, int rank) {
      const Range own = owned_range(kElements, rank, world, Ownership::equal_ranges());
      const at::Tensor shard =
          whole.view(-1).narrow(0, static_cast<std::int64_t>(own.first), static_cast<std::int64_t>(own.count));
      auto registry = std::make_shared<dc::DSParamRegistry>();
      registry->registerParam(0, {43, 3}, shard.clone(), {}, true, 0, false);
      dc::ParamGather gather(std::make_unique<Wire>(backend, kGatherTimeout), registry, kMostElements, nullptr,
                             std::make_shared<dc::Flags>());
      gather.start(std::vector<long>{0}, {});
      gather.wait(0);
      EXPECT_TRUE(at::equal(registry->getGatheredParam(0).view(-1).view(at::kLong), bits)) << "world " << world;
    });
  }
}

}  // namespace

}  // namespace octavo
