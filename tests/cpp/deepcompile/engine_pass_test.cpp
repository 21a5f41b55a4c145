// SPDX-License-Identifier: Apache-2.0
// A backward pass of ZeRO's engine is begun, and then ended or given up: one that was broken off leaves nothing to the
// next one.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <chrono>
#include <future>
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

/// A bucket has 1000 elements: it is under way when the second gradient comes.
const ZeroRank::Shapes kOfPass = {{30, 20}, {700}, {90}};
const std::vector<at::Tensor> kBrokenOff = {at::linspace(-5, 7, 600).view({30, 20}), at::linspace(7, -6, 700)};
constexpr long kPassGraph = ZeroRank::kGraph;

dc::EngineOptions options_of(const char* plan) {
  dc::EngineOptions options;
  options.plan = Plan::parse(plan);
  return options;
}

std::vector<at::Tensor> gradients_of_pass(int rank, int pass) {
  std::vector<at::Tensor> gradients;
  for (const auto& shape : kOfPass) {
    const at::Tensor flat = at::arange(at::empty(shape).numel(), at::kFloat) * (3 * rank + 5) + pass;
    gradients.push_back((at::remainder(flat, 89) / 44.5 - 1).view(shape));
  }
  return gradients;
}

/// What a codec leaves out is rounded by the number of the step, which differs where a pass was given up: single codes
/// may differ.
void expect_same_gradients(const ZeroRank& got, const ZeroRank& expected) {
  for (std::size_t i = 0; i < kOfPass.size(); ++i) {
    const at::Tensor difference = (got.gradients[i] - expected.gradients[i]).abs();
    EXPECT_LT(difference.sum().item<double>(), 1e-3 * static_cast<double>(difference.numel())) << "parameter " << i;
  }
}

/// Calls `body` for all stages, several numbers of ranks and plans that remember something or not. It gets a rank in
/// which passes are to be broken off, and one that has none of them.
template <class Body>
void for_each_kind(Body body) {
  for (const int stage : {1, 2, 3}) {
    for (const int world : {1, 2, 3}) {
      for (const char* plan : {"dense", "int4:64+ef"}) {
        run_ranks(world, [&](const BackendPtr& backend, int rank) {
          ZeroRank broken(backend, stage, kOfPass, options_of(plan)), whole(backend, stage, kOfPass, options_of(plan));
          body(broken, whole, rank);
        });
        if (testing::Test::HasFailure()) FAIL() << "stage " << stage << ", " << world << " ranks, " << plan;
      }
    }
  }
}

TEST(EnginePass, OneThatIsGivenUpLeavesNothing) {
  for_each_kind([](ZeroRank& broken, ZeroRank& whole, int rank) {
    for (auto* const own : {&broken, &whole}) own->backward(gradients_of_pass(rank, 0), true);
    for (const bool update : {false, true}) {
      broken.engine.start_backward(update);
      broken.reduce(kBrokenOff);
      broken.engine.give_up_pass();
      EXPECT_TRUE(broken.engine.reduced_params().empty());
    }
    for (auto* const own : {&broken, &whole}) own->backward(gradients_of_pass(rank, 1), true);
    expect_same_gradients(broken, whole);
  });
}

TEST(EnginePass, DroppingGradientsAndForgettingGraphsGiveItUp) {
  for_each_kind([](ZeroRank& broken, ZeroRank& whole, int rank) {
    broken.engine.start_backward(true);
    broken.reduce(kBrokenOff);
    broken.engine.drop_gradients();
    broken.engine.start_backward(true);
    broken.reduce(kBrokenOff);
    const bool is_sharded = broken.engine.param_registry->getParam(0).isPartitioned();
    broken.engine.reset();
    if (is_sharded) broken.engine.register_graph_z3(kPassGraph, broken.ids);
    if (!is_sharded) broken.engine.register_graph_z2(kPassGraph, broken.ids);
    for (auto* const own : {&broken, &whole}) own->backward(gradients_of_pass(rank, 1), true);
    expect_same_gradients(broken, whole);
  });
}

/// An earlier micro-batch is given up with the pass that follows it, because that has perhaps added a part of its
/// gradients. An error outside of a pass leaves it.
TEST(EnginePass, EarlierMicroBatchesAreGivenUpWithAPassAlone) {
  for_each_kind([](ZeroRank& broken, ZeroRank& whole, int rank) {
    broken.backward(gradients_of_pass(rank, 0), false);
    broken.engine.start_backward(true);
    broken.reduce(kBrokenOff);
    broken.engine.give_up_pass();
    for (auto* const own : {&broken, &whole}) {
      own->backward(gradients_of_pass(rank, 1), false);
      if (own == &broken) own->engine.give_up_pass();  // after an error in a forward pass
      own->backward(gradients_of_pass(rank, 2), true);
    }
    expect_same_gradients(broken, whole);
  });
}

TEST(EnginePass, OneThatWasNotEndedIsNamedByTheNext) {
  run_ranks(2, [](const BackendPtr& backend, int rank) {
    ZeroRank own(backend, 2, kOfPass), whole(backend, 2, kOfPass);
    const std::vector<at::Tensor> gradients = gradients_of_pass(rank, 0);
    own.engine.start_backward(true);
    own.engine.reduce_grad({}, kPassGraph, 0);
    own.engine.start_backward(true);  // there were no gradients
    own.reduce(gradients);
    EXPECT_NE(refusal_of([&] { own.engine.start_backward(false); }).find("graphs [0] have gradients of it: call "),
              std::string::npos);
    EXPECT_NE(
        refusal_of([&] { own.engine.unregister_graph(kPassGraph); }).find("graph 0 has gradients in a backward pass"),
        std::string::npos);
    own.engine.end_backward(kPassGraph);
    whole.backward(gradients, true);
    expect_same_gradients(own, whole);
    own.engine.unregister_graph(kPassGraph);
  });
}

/// In stage 1 sums wait for the last pass of a step. A graph that is left out there must not add them to the next step.
TEST(EnginePass, AGraphThatTheLastPassOfAStepLeavesOutIsNamed) {
  run_ranks(2, [](const BackendPtr& backend, int rank) {
    ZeroRank own(backend, 1, kOfPass), whole(backend, 1, kOfPass);
    own.engine.register_graph_z1(1, {0});
    const std::vector<at::Tensor> gradients = gradients_of_pass(rank, 0);
    own.backward(gradients, false);
    own.engine.start_backward(true);
    own.engine.reduce_grad(gradients[0], 1, 0);
    own.engine.end_backward(1);
    EXPECT_NE(refusal_of([&] {
                own.engine.start_backward(true);
              }).find("the last step is missing the gradients of parameter 1, parameter 2. In stage 1 they"),
              std::string::npos);
    own.engine.drop_gradients();
    for (auto* const one : {&own, &whole}) one->backward(gradients_of_pass(rank, 1), true);
    expect_same_gradients(own, whole);
  });
}

TEST(EnginePass, AParameterWithoutElementsMayHaveSeveralGradients) {
  run_ranks(2, [](const BackendPtr& backend, int) {
    ZeroRank own(backend, 2, {{0}, {5}});
    own.engine.start_backward(true);
    for (int use = 0; use < 3; ++use) own.engine.reduce_grad(at::zeros({0}), kPassGraph, 0);
    own.engine.reduce_grad(at::ones({5}), kPassGraph, 1);
    own.engine.end_backward(kPassGraph);
    EXPECT_TRUE(own.gradients[1].eq(1).all().item<bool>());
  });
}

TEST(EnginePass, GradientsThatWaitForTheirTurnAreGivenUp) {
  run_ranks(2, [](const BackendPtr& backend, int rank) {
    ZeroRank own(backend, 2, kOfPass), whole(backend, 2, kOfPass);
    for (auto* const one : {&own, &whole}) one->engine.order_gradients(kPassGraph, {0, 1, 2}, true);
    own.engine.start_backward(true);
    own.engine.take_grad(kBrokenOff[1].clone(), kPassGraph, 1);
    own.engine.give_up_pass();
    for (auto* const one : {&own, &whole}) {
      one->engine.start_backward(true);
      for (const long id : {2L, 0L}) {
        one->engine.take_grad(gradients_of_pass(rank, 0)[static_cast<std::size_t>(id)], kPassGraph, id);
      }
      one->engine.end_backward(kPassGraph);
    }
    EXPECT_EQ(own.engine.reduced_params().size(), 2U);  // no rank has a gradient of parameter 1
    expect_same_gradients(own, whole);
  });
}

/// What the first end of a graph lacked on all ranks may come before its second end, and counts then.
TEST(EnginePass, AnOrderedGraphThatEndsTwiceKeepsTheGradientsOfBothEnds) {
  run_ranks(2, [](const BackendPtr& backend, int rank) {
    ZeroRank own(backend, 2, kOfPass), whole(backend, 2, kOfPass);
    const std::vector<at::Tensor> gradients = gradients_of_pass(rank, 0);
    own.engine.order_gradients(kPassGraph, {0, 1, 2}, false);
    own.engine.start_backward(true);
    for (const std::vector<long>& end : {std::vector<long>{1, 2}, std::vector<long>{0}}) {
      for (const long id : end) own.engine.take_grad(gradients[static_cast<std::size_t>(id)].clone(), kPassGraph, id);
      own.engine.end_backward(kPassGraph);
    }
    whole.backward(gradients, true);
    EXPECT_EQ(own.engine.reduced_params().size(), 3U);
    expect_same_gradients(own, whole);
    const std::uint64_t before = own.engine.sent_bytes();
    own.engine.order_gradients(kPassGraph, {0, 1, 2}, false);
    EXPECT_EQ(own.engine.sent_bytes(), before) << "the bytes of the order before are forgotten";
    own.engine.unregister_graph(kPassGraph);
    EXPECT_EQ(own.engine.sent_bytes(), before) << "the bytes of a graph that is forgotten are, too";
  });
}

/// Zeros are sent once in a pass, and so they are taken back once.
TEST(EnginePass, AnOrderedGraphThatEndsTwiceKeepsTheGradientsOfAnEarlierMicroBatch) {
  run_ranks(2, [](const BackendPtr& backend, int rank) {
    ZeroRank own(backend, 2, kOfPass), whole(backend, 2, kOfPass);
    const std::vector<at::Tensor> first = gradients_of_pass(rank, 0), second = gradients_of_pass(rank, 1);
    own.engine.order_gradients(kPassGraph, {0, 1, 2}, false);
    for (auto* const one : {&own, &whole}) {
      one->engine.start_backward(false);
      for (const long id : {0L, 1L, 2L})
        one->engine.take_grad(first[static_cast<std::size_t>(id)].clone(), kPassGraph, id);
      one->engine.end_backward(kPassGraph);
      one->engine.start_backward(true);
      for (const long id : {1L, 2L})
        one->engine.take_grad(second[static_cast<std::size_t>(id)].clone(), kPassGraph, id);
      one->engine.end_backward(kPassGraph);
    }
    own.engine.end_backward(kPassGraph);
    EXPECT_EQ(own.engine.reduced_params().size(), 3U);
    expect_same_gradients(own, whole);
  });
}

/// A graph that ends sends, too, what another one has put into the bucket.
TEST(EnginePass, AParameterThatOneGraphLacksHasTheGradientOfAnother) {
  run_ranks(2, [](const BackendPtr& backend, int rank) {
    ZeroRank own(backend, 2, kOfPass), whole(backend, 2, kOfPass);
    const std::vector<at::Tensor> gradients = gradients_of_pass(rank, 0);
    own.engine.register_graph_z2(1, {0});
    own.engine.order_gradients(kPassGraph, {0, 1, 2}, true);
    own.engine.start_backward(true);
    own.engine.reduce_grad(gradients[0], 1, 0);
    for (const long id : {1L, 2L})
      own.engine.take_grad(gradients[static_cast<std::size_t>(id)].clone(), kPassGraph, id);
    own.engine.end_backward(kPassGraph);
    own.engine.end_backward(1);
    whole.backward(gradients, true);
    EXPECT_EQ(own.engine.reduced_params().size(), 3U);
    expect_same_gradients(own, whole);
  });
}

TEST(EnginePass, OthersOfARankThatGivesUpAloneEndByTheirDeadline) {
  std::promise<void> first_has_ended;
  run_ranks(2, [&](const BackendPtr& backend, int rank) {
    dc::EngineOptions options;
    options.timeout = std::chrono::milliseconds(300);
    ZeroRank own(backend, 2, kOfPass, options);
    ASSERT_EQ(own.engine.why_no_symmetric_memory(), "") << "the other back end, that of threads, has no deadline";
    own.engine.start_backward(true);
    own.engine.reduce_grad(kBrokenOff[0], kPassGraph, 0);
    if (rank == 1) {
      own.engine.give_up_pass();
      EXPECT_EQ(first_has_ended.get_future().wait_for(std::chrono::seconds(60)), std::future_status::ready);
      return;
    }
    try {
      own.engine.end_backward(kPassGraph);
      ADD_FAILURE() << "expected an error";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::timeout) << error.what();
    }
    own.engine.give_up_pass();
    first_has_ended.set_value();
  });
}

}  // namespace

}  // namespace octavo
