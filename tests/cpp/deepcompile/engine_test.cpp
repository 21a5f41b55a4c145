// SPDX-License-Identifier: Apache-2.0
// ZeRO's engine: stages 1, 2 and 3 train like plain averaging, bit by bit where two ranks are added up.
#include "octavo/deepcompile/engine.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <memory>
#include <string>
#include <vector>

#include "tests/cpp/ranks.h"
#include "tests/cpp/refusal.h"

namespace octavo {

namespace {

using thread_ranks::BackendPtr;
using thread_ranks::run_ranks;

constexpr double kLr = 0.125;
const std::vector<std::vector<std::int64_t>> kModel = {{9, 7}, {5}, {}, {40, 3}};
const std::vector<std::vector<long>> kGraphs = {{0, 1, 2}, {2, 3}};  // both graphs use parameter 2

at::Tensor first_values(long id) {
  const auto& shape = kModel[static_cast<std::size_t>(id)];
  return (at::remainder(at::arange(at::empty(shape).numel(), at::kFloat) * 13 + id, 31) / 16).view(shape);
}

/// Returns a rank's gradient from whole values; it differs by rank, graph and micro-batch.
at::Tensor gradient_at(const at::Tensor& values, int rank, std::size_t graph, int batch) {
  return values * (0.25 * (rank + 1)) + static_cast<double>(graph) - 0.5 * batch;
}

/// Returns the values that one process computes from all ranks' gradients.
std::vector<at::Tensor> expected_values(int world, int steps, int batches) {
  std::vector<at::Tensor> values;
  for (std::size_t i = 0; i < kModel.size(); ++i) values.push_back(first_values(static_cast<long>(i)));
  for (int step = 0; step < steps; ++step) {
    std::vector<at::Tensor> sums;
    for (const at::Tensor& one : values) sums.push_back(at::zeros_like(one));
    for (int batch = 0; batch < batches; ++batch) {
      for (std::size_t g = 0; g < kGraphs.size(); ++g) {
        for (const long id : kGraphs[g]) {
          const auto i = static_cast<std::size_t>(id);
          for (int r = 0; r < world; ++r) sums[i] += gradient_at(values[i], r, g, batch) / world;
        }
      }
    }
    for (std::size_t i = 0; i < values.size(); ++i) values[i] -= kLr * sums[i];
  }
  return values;
}

class Model {
 public:
  Model(const BackendPtr& backend, int stage) : stage_(stage), rank_(backend->getRank()) {
    const auto group = c10::make_intrusive<c10d::ProcessGroup>(rank_, backend->getSize());
    engine = std::make_unique<dc::Engine>(group, backend, /*bucket_size=*/50);
    for (std::size_t i = 0; i < kModel.size(); ++i) {
      const auto id = static_cast<long>(i);
      const at::Tensor whole = first_values(id);
      const Range own = engine->owned(static_cast<std::uint64_t>(whole.numel()));
      const auto first = static_cast<std::int64_t>(own.first), count = static_cast<std::int64_t>(own.count);
      const at::Tensor part = whole.view(-1).narrow(0, first, count);
      buffers.push_back(at::empty({count}));
      if (stage == 3) {
        parts.push_back(part.clone());
        engine->register_z3_param(id, kModel[i], parts[i], buffers[i], /*persistent=*/id == 0);
      } else {
        parts.push_back(part);
        engine->register_param(id, kModel[i], whole, buffers[i], first);
      }
      wholes.push_back(whole);
    }
    for (std::size_t g = 0; g < kGraphs.size(); ++g) {
      const auto id = static_cast<long>(g);
      if (stage == 1) engine->register_graph_z1(id, kGraphs[g]);
      if (stage == 2) engine->register_graph_z2(id, kGraphs[g]);
      if (stage == 3) engine->register_graph_z3(id, kGraphs[g]);
    }
  }

  void step(int batches) {
    for (int batch = 0; batch < batches; ++batch) {
      engine->start_forward();
      engine->end_forward();
      engine->start_backward(batch == batches - 1);
      for (std::size_t g = kGraphs.size(); g-- > 0;) backward(g, batch);
    }
    for (std::size_t i = 0; i < parts.size(); ++i) parts[i] -= kLr * buffers[i];
    if (stage_ != 3) engine->gather_updated();
  }

  at::Tensor whole(long id) {
    if (stage_ != 3) return wholes[static_cast<std::size_t>(id)];
    const long graph = id == 3 ? 1 : 0;
    const at::Tensor gathered = engine->wait_allgather(engine->allgather_param(graph, id), graph, id).clone();
    engine->release_param(graph, id, 1);
    return gathered;
  }

  std::unique_ptr<dc::Engine> engine;
  std::vector<at::Tensor> wholes, parts, buffers;

 private:
  void backward(std::size_t g, int batch) {
    const auto graph = static_cast<long>(g);
    if (stage_ == 3) engine->prefetch_params_fused(graph, kGraphs[g]);
    for (const long id : kGraphs[g]) {
      at::Tensor values = wholes[static_cast<std::size_t>(id)];
      if (stage_ == 3) values = engine->wait_allgather(engine->allgather_param(graph, id), graph, id);
      engine->reduce_grad(gradient_at(values, rank_, g, batch), graph, id);
      if (stage_ == 3) engine->release_param(graph, id, 1);
    }
    engine->end_backward(graph);
  }

  int stage_, rank_;
};

TEST(EngineTest, EveryStageTrainsAsAveragedGradientsDo) {
  for (const int stage : {1, 2, 3}) {
    for (int world = 1; world <= 4; ++world) {
      for (const int batches : {1, 4}) {
        const std::vector<at::Tensor> expected = expected_values(world, 3, batches);
        run_ranks(world, [&](const BackendPtr& backend, int) {
          Model model(backend, stage);
          for (int step = 0; step < 3; ++step) model.step(batches);
          for (std::size_t i = 0; i < kModel.size(); ++i) {
            EXPECT_TRUE(at::allclose(model.whole(static_cast<long>(i)), expected[i], 1e-5, 1e-6))
                << "stage " << stage << ", " << world << " ranks, parameter " << i;
          }
        });
      }
    }
  }
}

TEST(EngineTest, TwoEnginesDoNotSeeEachOther) {
  run_ranks(2, [](const BackendPtr& backend, int) {
    Model one(backend, 1), other(backend, 3);
    one.step(1);
    EXPECT_EQ(other.engine->sent_bytes(), 0U);
    EXPECT_TRUE(at::equal(other.whole(3), first_values(3)));
    other.step(2);
    EXPECT_TRUE(at::allclose(one.whole(3), expected_values(2, 1, 1)[3], 1e-5, 1e-6));
    EXPECT_TRUE(at::allclose(other.whole(3), expected_values(2, 1, 2)[3], 1e-5, 1e-6));
  });
}

TEST(EngineTest, ValuesThatAreLoadedTakeThePlaceOfPersistentOnes) {
  run_ranks(2, [](const BackendPtr& backend, int) {
    Model model(backend, 3);
    EXPECT_TRUE(at::equal(model.whole(0), first_values(0)));
    for (at::Tensor& part : model.parts) part.fill_(3);
    model.engine->invalidate_gathered_params();
    EXPECT_TRUE(model.whole(0).eq(3).all().item<bool>());
  });
}

TEST(EngineTest, AnErrorNamesTheGraphTheParameterAndTheRank) {
  run_ranks(2, [](const BackendPtr& backend, int rank) {
    Model model(backend, 3);
    dc::Engine& engine = *model.engine;
    const std::string on_rank = "rank " + std::to_string(rank) + ")";
    const auto expect = [&](const std::string& place, const auto& call) {
      const std::string said = refusal_of(call);
      EXPECT_NE(said.find(" (" + place + on_rank), std::string::npos) << said;
    };
    expect("graph 0, parameter 77, ", [&] { engine.allgather_param(0, 77); });
    expect("graph 55, parameter 0, ", [&] { engine.allgather_param(55, 0); });
    expect("graph 0, parameter 0, parameter 1, ", [&] { engine.prefetch_params_fused(0, {0, 1}, {at::kFloat}); });
    expect("graph 0, parameter 1, ", [&] { engine.release_param(0, 1, 1); });
    expect("graph 0, parameter 0, ", [&] { engine.reduce_grad(at::ones({3}), 0, 0); });
    expect("graph 1, parameter 3, ", [&] { engine.take_grad(at::ones({3}), 1, 3); });
    expect("graph 0, parameter 0, ", [&] { engine.reduce_grads({at::ones({3})}, 0, {0}); });
    expect("graph 55, ", [&] { engine.end_backward(55); });
    expect("graph 0, value 4, ", [&] { engine.reload_tensor(at::ones({3}), 0, 4); });
    expect("graph 9, ", [&] { engine.register_graph_z3(9, {50}); });
    expect("parameter 99, ", [&] { engine.set_persistent(99); });
  });
}

TEST(EngineTest, AShardIsWhatARankOwnsAndNotTheWhole) {
  run_ranks(2, [](const BackendPtr& backend, int rank) {
    const auto group = c10::make_intrusive<c10d::ProcessGroup>(rank, 2);
    dc::Engine engine(group, backend, 100);
    const auto add = [&](std::int64_t count) {
      engine.register_z3_param(0, {7}, at::ones({count}), at::zeros({4}), false);
    };
    for (const std::int64_t count : {2, 5, 7}) {
      EXPECT_NE(refusal_of([&] { add(count); }).find("or padded to 4, got " + std::to_string(count)),
                std::string::npos);
    }
    add(4);  // rank 1 owns 3
  });
}

TEST(EngineTest, AGradientBeforeTheFirstBackwardPassIsRefused) {
  run_ranks(2, [](const BackendPtr& backend, int) {
    Model model(backend, 2);
    EXPECT_NE(refusal_of([&] { model.engine->reduce_grad(first_values(3), 1, 3); }).find("first start_backward()"),
              std::string::npos);
    EXPECT_NE(refusal_of([&] { model.engine->take_grad(first_values(3), 1, 3); }).find("first start_backward()"),
              std::string::npos);
    model.step(1);
  });
}

/// The transpose has as many elements, and would be reduced as if it lay in rows.
TEST(EngineTest, AGradientOfAnotherShapeIsRefused) {
  run_ranks(2, [](const BackendPtr& backend, int) {
    for (const int stage : {1, 2, 3}) {
      Model model(backend, stage);
      model.engine->start_backward(true);
      const at::Tensor turned = first_values(3).t().contiguous();
      EXPECT_NE(refusal_of([&] { model.engine->reduce_grad(turned, 1, 3); }).find("of shape [40, 3], or flat, on cpu"),
                std::string::npos);
      model.engine->reduce_grad(first_values(3).view(-1), 1, 3);
      model.engine->end_backward(1);
      EXPECT_TRUE(at::allclose(model.buffers[3], model.parts[3].view(-1)));
    }
  });
}

TEST(EngineTest, AGatherThatIsNotWaitedForIsFoundInAForwardPass) {
  run_ranks(2, [](const BackendPtr& backend, int) {
    Model model(backend, 3);
    dc::Engine& engine = *model.engine;
    engine.start_forward();
    engine.allgather_params_fused(0, {0, 1});
    EXPECT_NE(refusal_of([&] { engine.end_forward(); }).find("parameter 0, parameter 1 was not waited for"),
              std::string::npos);
    engine.end_forward();  // it was said once
    const std::vector<at::Tensor> gathered = engine.allgather_params_fused(0, {1});
    EXPECT_NE(refusal_of([&] { engine.start_forward(); }).find("parameter 1 was not waited for"), std::string::npos);
    engine.start_forward();
    engine.wait_params(engine.allgather_params_fused(0, {1}), 0, {1});
    engine.end_forward();
  });
}

TEST(EngineTest, ARefusedGraphOrParameterChangesNothing) {
  run_ranks(2, [](const BackendPtr& backend, int rank) {
    dc::EngineOptions options;
    options.plan = Plan::parse("dense;none=int4");  // a rule that fits no parameter
    dc::Engine engine(c10::make_intrusive<c10d::ProcessGroup>(rank, 2), backend, 100, options);
    const auto add = [&](long id, std::vector<std::int64_t> shape, at::Tensor shard, const char* name) {
      engine.register_z3_param(id, shape, std::move(shard), {}, false, {.name = name});
    };
    add(0, {8}, at::zeros({4}), "w");
    EXPECT_NE(refusal_of([&] { engine.register_graph_z3(1, {0, 5}); }).find("no parameter 5"), std::string::npos);
    EXPECT_NE(refusal_of([&] { engine.register_graph_z3(1, {0}); }).find("none"), std::string::npos);
    EXPECT_EQ(
        refusal_of([&] { add(1, {8}, at::zeros({4}), "w"); }),
        "[deepcompile.engine] parameters 0 and 1 have the same name, w, by which their states are saved: give each "
        "its own");
    EXPECT_NE(refusal_of([&] { add(1, {8}, {}, "v"); }).find("values of parameter 1, got an undefined"),
              std::string::npos);
    EXPECT_NE(
        refusal_of([&] { add(1, {-2, -4}, at::zeros({4}), "v"); }).find("at least 0 of parameter 1, got [-2, -4]"),
        std::string::npos);
    EXPECT_NE(refusal_of([&] { add(1, {1LL << 32, 1LL << 32}, at::zeros({0}), "v"); }).find("elements of parameter 1"),
              std::string::npos);
    EXPECT_NE(refusal_of([&] { engine.register_param(1, {8}, {}, {}, 4 * rank); }).find("got an undefined one"),
              std::string::npos);
    EXPECT_NE(refusal_of([&] { engine.register_param(1, {-8}, at::zeros({8}), {}, 0); }).find("got [-8]"),
              std::string::npos);
    EXPECT_NE(refusal_of([&] {
                engine.register_param(1, {8}, at::zeros({7}), {}, 4 * rank, {.own_part = at::zeros({4})});
              }).find("expected parameter 1 with 8 elements in row-major order"),
              std::string::npos);
    EXPECT_FALSE(engine.param_registry->hasParam(1));
    add(1, {8}, at::zeros({4}), "none");  // no graph has come before
    engine.register_graph_z3(1, {0, 1});
  });
}

TEST(EngineTest, WhatDoesNotFitIsRefused) {
  run_ranks(2, [&](const BackendPtr& backend, int rank) {
    const auto group = c10::make_intrusive<c10d::ProcessGroup>(rank, 2);
    EXPECT_NE(refusal_of([&] { dc::Engine(group, backend, 0); }).find("a bucket of at least 1 element, got 0"),
              std::string::npos);
    dc::Engine engine(group, backend, 100);
    EXPECT_NE(refusal_of([&] { engine.start_backward(true); }).find("register one first"), std::string::npos);
    EXPECT_NE(refusal_of([&] { engine.register_graph_z1(0, {0}); }).find("register parameters before"),
              std::string::npos);
    EXPECT_NE(refusal_of([&] { engine.register_param(0, {8}, at::zeros({8}), {}, 1); }).find("of parameter 0"),
              std::string::npos);
    EXPECT_NE(refusal_of([&] { engine.register_z3_param(0, {8}, at::zeros({3}), {}, false); }).find("with 4 elements"),
              std::string::npos);
    EXPECT_NE(
        refusal_of([&] { engine.register_param(0, {4, 2}, at::zeros({2, 4}).t(), {}, 4 * rank); }).find("row-major"),
        std::string::npos);
    EXPECT_NE(
        refusal_of([&] { engine.register_param(0, {8}, at::zeros({9}), {}, 4 * rank); }).find("8 elements in row"),
        std::string::npos);
    engine.register_param(0, {8}, at::zeros({8}), at::zeros({4}), 4 * rank);
    EXPECT_NE(refusal_of([&] {
                engine.register_z3_param(1, {8}, at::zeros({4}, at::kMeta), {}, false);
              }).find("parameter 1 is on meta, and parameter 0 on cpu: expected all on one device"),
              std::string::npos);
    EXPECT_NE(refusal_of([&] { engine.register_graph_z1(0, {0, 5}); }).find("no parameter 5 is registered"),
              std::string::npos);
    EXPECT_NE(refusal_of([&] {
                engine.register_param(1, {8}, at::zeros({8}, at::kBFloat16), {}, 4 * rank,
                                      {.own_part = at::zeros({4})});
              }).find("as BFloat16, as the whole, got Float"),
              std::string::npos);
    EXPECT_NE(refusal_of([&] { engine.set_persistent(0, false); }).find("parameter 0 is of stage 1 or 2"),
              std::string::npos);
    engine.register_z3_param(1, {8}, at::zeros({4}), {}, false);
    EXPECT_NE(refusal_of([&] { engine.register_graph_z1(0, {0, 1}); }).find("graph 0 has parameter 1 of another stage"),
              std::string::npos);
    EXPECT_NE(refusal_of([&] { engine.register_graph_z3(0, {1, 0}); }).find("graph 0 has parameter 0 of another stage"),
              std::string::npos);
    engine.register_graph_z1(0, {0});
    EXPECT_NE(refusal_of([&] { engine.register_graph_z2(0, {0}); }).find("graph 0 is registered already"),
              std::string::npos);
    EXPECT_NE(refusal_of([&] { engine.register_param(2, {8}, at::zeros({8}), {}, 4 * rank); }).find("after the first"),
              std::string::npos);
    EXPECT_NE(refusal_of([&] { engine.end_backward(3); }).find("graph 3 is not registered; 1 others are"),
              std::string::npos);
    EXPECT_NE(refusal_of([&] { engine.allgather_param(0, 0); }).find("another stage of ZeRO"), std::string::npos);
  });
}

}  // namespace

}  // namespace octavo
