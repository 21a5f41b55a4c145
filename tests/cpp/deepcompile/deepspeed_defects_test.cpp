// SPDX-License-Identifier: Apache-2.0
// Defects of DeepSpeed's DeepCompile (2026-08), in the order in which they were found; each test checks the right
// behavior. This file has 1 to 6, 8, 11 and 13 to 15. The others: 7, how parameters move, is in
// tests/python/sycl/test_sycl_parameters.py; 9, memory that is registered again, in deepcompile_test.cpp
// (WholeValuesComeAndGo); 10, shards that are too small, in engine_test.cpp (WhatDoesNotFitIsRefused); 12, a threshold
// in bytes, in default_engine_test.cpp.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <limits>
#include <memory>
#include <set>
#include <vector>

#include "octavo/deepcompile/engine.h"
#include "tests/cpp/ranks.h"
#include "tests/cpp/zero_rank.h"

namespace octavo {

namespace {

using thread_ranks::BackendPtr;
using thread_ranks::run_ranks;
constexpr long kGraphOfAll = ZeroRank::kGraph;

TEST(DeepSpeedDefects, Stage1GoesOnAccumulatingAfterItsBucketsWereReleased) {
  run_ranks(2, [](const BackendPtr& backend, int rank) {
    ZeroRank own(backend, 1, {{5, 3}});
    const at::Tensor gradient = own.whole(0) * (rank + 1);
    for (int step = 0; step < 3; ++step) {
      for (const bool update : {false, false, true}) {
        own.engine.start_backward(update);
        own.reduce({gradient});
        own.engine.end_backward(kGraphOfAll, /*release_reduce_buckets=*/update);
      }
      EXPECT_TRUE(at::allclose(own.gradients[0], own.own(own.whole(0) * 1.5 * 3)));
    }
  });
}

TEST(DeepSpeedDefects, AParameterOfTwoGraphsAndAGraphThatRunsTwiceAddUpTheirGradients) {
  for (const int stage : {1, 2, 3}) {
    run_ranks(2, [&](const BackendPtr& backend, int rank) {
      ZeroRank own(backend, stage, {{5, 3}, {2}});
      constexpr long kSecond = 1;
      if (stage == 1) own.engine.register_graph_z1(kSecond, {0});
      if (stage == 2) own.engine.register_graph_z2(kSecond, {0});
      if (stage == 3) own.engine.register_graph_z3(kSecond, {0});
      const at::Tensor gradient = own.whole(0) * (rank + 1);
      for (int step = 0; step < 2; ++step) {
        own.engine.start_backward(true);
        for (const long graph : {kSecond, kGraphOfAll, kGraphOfAll}) {
          own.engine.reduce_grad(gradient, graph, 0);
          own.engine.end_backward(graph);
        }
        EXPECT_TRUE(at::allclose(own.gradients[0], own.own(own.whole(0) * 1.5 * 3))) << "stage " << stage;
      }
    });
  }
}

TEST(DeepSpeedDefects, NothingBesideAnOddGradientReachesItsOwner) {
  for (const int world : {2, 3, 4}) {
    run_ranks(world, [](const BackendPtr& backend, int) {
      ZeroRank own(backend, 3, {{7}, {5}, {1}, {9}});
      for (int step = 0; step < 2; ++step) {  // the second step uses the first one's memory
        std::vector<at::Tensor> gradients;
        for (const long id : own.ids) {
          const bool is_bad = (id + step) % 2 == 1;
          gradients.push_back(is_bad ? at::full_like(own.whole(id), std::numeric_limits<float>::quiet_NaN())
                                     : own.whole(id));
        }
        own.backward(gradients, true);
        for (const long id : own.ids) {
          const auto i = static_cast<std::size_t>(id);
          const at::Tensor expected = own.own(gradients[i]);
          EXPECT_TRUE(at::allclose(own.gradients[i], expected, 1e-6, 1e-6, /*equal_nan=*/true)) << "parameter " << id;
        }
      }
    });
  }
}

TEST(DeepSpeedDefects, WhatWasFetchedAheadIsCastAfterItHasCome) {
  run_ranks(2, [](const BackendPtr& backend, int) {
    ZeroRank own(backend, 3, {{33, 10}});
    own.engine.prefetch_params_fused(kGraphOfAll, {0});
    const at::Tensor cast = own.engine.allgather_param(kGraphOfAll, 0, at::kBFloat16);
    EXPECT_TRUE(at::equal(own.engine.wait_allgather(cast, kGraphOfAll, 0), own.whole(0).to(at::kBFloat16)));
  });
}

TEST(DeepSpeedDefects, APersistentParameterHasTheTracedDtypeAtEachUse) {
  run_ranks(2, [](const BackendPtr& backend, int) {
    ZeroRank own(backend, 3, {{33, 10}});
    own.engine.set_persistent(0);
    own.gathered(0);  // gathers float32, which is kept
    for (int step = 0; step < 2; ++step) {
      for (int use = 0; use < 2; ++use) {
        const at::Tensor narrow = own.gathered(0, at::kBFloat16);
        EXPECT_EQ(narrow.scalar_type(), at::kBFloat16);
        EXPECT_TRUE(at::equal(narrow, own.whole(0).to(at::kBFloat16)));
        own.engine.release_param(kGraphOfAll, 0, 1);
      }
      own.backward({own.whole(0)}, true);
    }
  });
}

TEST(DeepSpeedDefects, ParametersThatAreCastInOneTransferDoNotShareMemory) {
  run_ranks(2, [](const BackendPtr& backend, int) {
    ZeroRank own(backend, 3, {{40, 3}, {40, 3}, {17}});
    const std::vector<at::ScalarType> dtypes = {at::kBFloat16, at::kHalf, at::kDouble};
    own.engine.prefetch_params_fused(kGraphOfAll, own.ids, dtypes);
    for (const long id : own.ids) {
      const at::ScalarType dtype = dtypes[static_cast<std::size_t>(id)];
      EXPECT_TRUE(at::equal(own.gathered(id, dtype), own.whole(id).to(dtype))) << "parameter " << id;
    }
  });
}

/// A shard changes for example where a checkpoint is loaded or an average replaces the parameters. Both may also happen
/// while the values are gathered.
TEST(DeepSpeedDefects, AShardThatChangesMakesPersistentValuesStale) {
  run_ranks(2, [](const BackendPtr& backend, int) {
    ZeroRank own(backend, 3, {{33, 10}});
    own.engine.set_persistent(0);
    const at::Tensor kept = own.gathered(0);
    EXPECT_TRUE(at::equal(kept, own.whole(0)));
    own.values[0].copy_(own.own(own.whole(0, 1)));
    EXPECT_FALSE(own.engine.param_registry->isValid(0));
    EXPECT_TRUE(at::equal(own.gathered(0), own.whole(0, 1)));
    EXPECT_TRUE(own.gathered(0).is_alias_of(kept));

    own.engine.invalidate_gathered_params();
    const at::Tensor under_way = own.engine.allgather_param(kGraphOfAll, 0);
    own.values[0].copy_(own.own(own.whole(0, 2)));
    own.engine.wait_allgather(under_way, kGraphOfAll, 0);
    EXPECT_FALSE(own.engine.param_registry->isValid(0));
    EXPECT_TRUE(at::equal(own.gathered(0), own.whole(0, 2)));

    own.engine.invalidate_gathered_params();
    const at::Tensor again = own.engine.allgather_param(kGraphOfAll, 0);
    own.engine.invalidate_gathered_params();
    own.engine.wait_allgather(again, kGraphOfAll, 0);
    EXPECT_FALSE(own.engine.param_registry->isValid(0));
  });
}

/// A gather that was begun before a shard changed, and that nobody has waited for, as after an error.
TEST(DeepSpeedDefects, AGatherUnderWayIsNotTakenForThatOfAShardThatChangedSince) {
  run_ranks(2, [](const BackendPtr& backend, int) {
    ZeroRank own(backend, 3, {{33, 10}, {7}});
    own.engine.prefetch_params_fused(kGraphOfAll, {0});
    own.values[0].copy_(own.own(own.whole(0, 3)));
    EXPECT_TRUE(at::equal(own.gathered(0), own.whole(0, 3)));

    own.engine.prefetch_params_fused(kGraphOfAll, {1});
    own.values[1].copy_(own.own(own.whole(1, 4)));
    const std::vector<at::Tensor> fresh = own.engine.allgather_params_fused(kGraphOfAll, {1});
    own.engine.wait_params(fresh, kGraphOfAll, {1});
    EXPECT_TRUE(at::equal(fresh[0], own.whole(1, 4)));

    own.engine.prefetch_params_fused(kGraphOfAll, {0});
    own.engine.param_registry->invalidateAll();
    EXPECT_FALSE(own.engine.param_registry->isThereOrComing(0));
    EXPECT_TRUE(at::equal(own.gathered(0), own.whole(0, 3)));
  });
}

TEST(DeepSpeedDefects, AParameterThatIsUnusedOrFrozenIsLeftOut) {
  for (const int stage : {1, 2, 3}) {
    run_ranks(2, [&](const BackendPtr& backend, int) {
      ZeroRank own(backend, stage, {{7}, {5}});
      own.backward({own.whole(0), at::Tensor()}, true);  // a frozen parameter is not registered
      EXPECT_TRUE(at::allclose(own.gradients[0], own.own(own.whole(0))));
      EXPECT_EQ(own.engine.reduced_params(), std::vector<long>{0});
    });
  }
}

TEST(DeepSpeedDefects, NumbersOfGraphsAreNotUsedAgain) {
  run_ranks(1, [](const BackendPtr& backend, int) {
    std::set<long> seen;
    for (int i = 0; i < 3; ++i) {
      ZeroRank own(backend, 3, {{7}});
      const long graph = own.engine.new_graph_id();
      own.engine.register_graph_z3(graph, {0});
      EXPECT_EQ(&dc::engine_of(graph), &own.engine);
      seen.insert(graph);
      own.engine.unregister_graph(graph);
      EXPECT_FALSE(own.engine.executors.contains(graph));
      seen.insert(own.engine.new_graph_id());
    }
    EXPECT_EQ(seen.size(), 6U);
  });
}

TEST(DeepSpeedDefects, AValueThatGoesToTheHostMayChangeItsShape) {
  run_ranks(1, [](const BackendPtr& backend, int) {
    ZeroRank own(backend, 3, {{7}});
    at::Tensor before;
    const void* memory_before = nullptr;
    for (const at::Tensor& value : {at::rand({4, 5}), at::rand({9}), at::rand({9}), at::rand({9}, at::kDouble)}) {
      const at::Tensor on_host = own.engine.offload_tensor(value, kGraphOfAll, 3);
      const bool fits = before.defined() && before.sizes() == value.sizes() && before.dtype() == value.dtype();
      EXPECT_EQ(on_host.data_ptr() == memory_before, fits);
      before = value;
      memory_before = on_host.data_ptr();
      EXPECT_TRUE(at::equal(own.engine.wait_offload(value, kGraphOfAll, 3), value));
      EXPECT_TRUE(
          at::equal(own.engine.wait_reload(own.engine.reload_tensor(value, kGraphOfAll, 3), kGraphOfAll, 3), value));
    }
  });
}

TEST(DeepSpeedDefects, AGatherIsUnderWayWhileGradientsAreReduced) {
  run_ranks(2, [](const BackendPtr& backend, int) {
    ZeroRank own(backend, 3, {{33, 10}, {7}});
    own.engine.start_backward(false);
    own.engine.prefetch_params_fused(kGraphOfAll, {1});
    own.engine.reduce_grad(own.whole(0), kGraphOfAll, 0);
    own.engine.end_backward(kGraphOfAll);
    EXPECT_TRUE(at::allclose(own.gradients[0], own.own(own.whole(0))));
    EXPECT_EQ(own.engine.param_registry->state(1), dc::Gathered::in_flight);
    EXPECT_TRUE(at::equal(own.gathered(1), own.whole(1)));
  });
}

}  // namespace

}  // namespace octavo
