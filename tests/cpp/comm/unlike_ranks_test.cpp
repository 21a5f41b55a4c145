// SPDX-License-Identifier: Apache-2.0
// Ranks that differ: some lack gradients, have other parameters or options, or make other calls.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <future>
#include <string>
#include <vector>

#include "octavo/comm/all_reduce.h"
#include "octavo/comm/compressor.h"
#include "octavo/kernels/error.h"
#include "octavo/outer/outer.h"
#include "tests/cpp/refusal.h"
#include "tests/cpp/zero_rank.h"

namespace octavo {

namespace {

using thread_ranks::BackendPtr;
using thread_ranks::run_ranks;

const ZeroRank::Shapes kUnlikeShapes = {{40, 3}, {9, 7}, {5}, {40, 3}, {700}};

dc::EngineOptions over(bool shared_memory) {
  dc::EngineOptions options;
  options.timeout = std::chrono::seconds(20);
  options.symmetric_memory = shared_memory;
  return options;
}

// ---- gradients that some ranks lack

// indexed by rank: the parameters, in the order in which their gradients come
using Pass = std::vector<std::vector<long>>;

at::Tensor own_gradient(const ZeroRank& mine, long id, int rank) { return mine.whole(id, 5 * rank + 1); }

/// Returns the mean gradient, to which ranks without one add zeros; undefined where all ranks lack it.
at::Tensor mean_gradient(const ZeroRank& mine, const Pass& pass, long id) {
  at::Tensor sum;
  for (std::size_t rank = 0; rank < pass.size(); ++rank) {
    for (const long come : pass[rank]) {
      if (come != id) continue;
      const at::Tensor own = own_gradient(mine, id, static_cast<int>(rank));
      sum = sum.defined() ? sum + own : own;
    }
  }
  return sum.defined() ? sum / static_cast<double>(pass.size()) : sum;
}

void expect_mean_gradients(ZeroRank& mine, const Pass& pass, int rank, int number) {
  mine.engine.start_backward(true);
  for (const long id : pass[static_cast<std::size_t>(rank)]) {
    mine.engine.take_grad(own_gradient(mine, id, rank), ZeroRank::kGraph, id);
  }
  mine.engine.end_backward(ZeroRank::kGraph);
  std::vector<long> expected, got = mine.engine.reduced_params();
  for (const long id : mine.ids) {
    const at::Tensor mean = mean_gradient(mine, pass, id);
    if (!mean.defined()) continue;
    expected.push_back(id);
    EXPECT_TRUE(at::allclose(mine.gradients[static_cast<std::size_t>(id)], mine.own(mean)))
        << "parameter " << id << ", pass " << number;
  }
  std::ranges::sort(got);
  EXPECT_EQ(got, expected) << "pass " << number;
}

const std::vector<Pass> kPasses = {
    {{4, 3, 2, 1, 0}, {4, 3, 1, 2, 0}},  // in another order
    {{4, 3, 1, 0}, {4, 2, 3, 0}},        // each rank lacks one
    {{4, 3, 1, 0}, {4, 3, 1, 0}},        // both ranks lack one
    {{}, {1}},
    {{4, 2, 3, 1, 0}, {0, 1, 2, 3, 4}},
    {{0, 0, 1}, {4, 0, 0}},  // a gradient that comes twice
    {{}, {}},
};

TEST(UnlikeRanksTest, GradientsThatSomeLackAreZerosThere) {
  for (const int stage : {1, 2, 3}) {
    for (const bool learns : {true, false}) {
      for (const std::vector<long>& expected : {std::vector<long>{4, 3, 2, 1, 0}, std::vector<long>{}}) {
        run_ranks(2, [&](const BackendPtr& backend, int rank) {
          ZeroRank mine(backend, stage, kUnlikeShapes);
          mine.engine.order_gradients(ZeroRank::kGraph, expected, learns);
          int number = 0;
          for (int round = 0; round < 2; ++round) {
            for (const Pass& pass : kPasses) expect_mean_gradients(mine, pass, rank, number++);
          }
        });
      }
    }
  }
}

/// Rank 1 lacks the first gradient, which is larger than all that follow. It goes on when rank 0 does, as if it needed
/// a gather of it.
TEST(UnlikeRanksTest, NobodyWaitsForAGradientThatIsSkipped) {
  std::promise<void> first_has_handed_over;
  const Pass pass = {{0, 1, 2}, {1, 2}};
  run_ranks(2, [&](const BackendPtr& backend, int rank) {
    ZeroRank mine(backend, 3, {{3000}, {40}, {980}}, over(true));
    mine.engine.order_gradients(ZeroRank::kGraph, {0, 1, 2}, true);
    mine.engine.start_backward(true);
    if (rank == 1) mine.engine.skip_gradients(ZeroRank::kGraph, {0});
    for (const long id : pass[static_cast<std::size_t>(rank)]) {
      mine.engine.take_grad(own_gradient(mine, id, rank), ZeroRank::kGraph, id);
    }
    if (rank == 0) {
      first_has_handed_over.set_value();
    } else {
      ASSERT_EQ(first_has_handed_over.get_future().wait_for(std::chrono::seconds(10)), std::future_status::ready);
    }
    mine.engine.end_backward(ZeroRank::kGraph);
    for (const long id : mine.ids) {
      EXPECT_TRUE(at::allclose(mine.gradients[static_cast<std::size_t>(id)], mine.own(mean_gradient(mine, pass, id))));
    }
  });
}

TEST(UnlikeRanksTest, AnOrderIsOfParametersOfTheGraph) {
  run_ranks(1, [](const BackendPtr& backend, int) {
    ZeroRank mine(backend, 2, kUnlikeShapes);
    EXPECT_THROW(mine.engine.order_gradients(ZeroRank::kGraph, {0, 9}, true), Error);
  });
}

// ---- other parameters and options

/// Returns the sentence of Error communication.
template <class Body>
std::string disagreement_of(Body body) {
  return refusal_of(body, ErrorCode::communication);
}

TEST(UnlikeRanksTest, AParameterOfAnotherSizeIsFoundInMessagesOfTheSameSize) {
  run_ranks(2, [](const BackendPtr& backend, int rank) {
    const std::int64_t count = 10 + rank;
    Compressor compressor(std::make_unique<Wire>(backend, std::chrono::seconds(20)), Plan::parse("sign+ef"),
                          {{"w", static_cast<std::uint64_t>(count), false}});
    compressor.begin_step();
    const std::string said = disagreement_of([&] { compressor.reduce(at::ones({count}), {{0, 0}}); });
    EXPECT_NE(said.find("same"), std::string::npos) << said;
  });
}

TEST(UnlikeRanksTest, OuterLoopsAgreeOnOptionsAndModel) {
  run_ranks(2, [](const BackendPtr& backend, int rank) {
    const auto make = [&](double lr, std::int64_t count) {
      const std::vector<OuterParameter> parameters = {{"w", at::zeros({count}), false}};
      Outer(backend, std::chrono::seconds(20), Plan::parse("int4"), parameters, {.every = 2, .lr = lr});
    };
    for (const std::string& said :
         {disagreement_of([&] { make(1.0 / (1 + rank), 8); }), disagreement_of([&] { make(1, 8 + rank); })}) {
      EXPECT_NE(said.find("have other options, another plan, seed or model"), std::string::npos) << said;
    }
    make(1, 8);
  });
}

TEST(UnlikeRanksTest, AllReduceTakesALeafThatRequiresAGradient) {
  run_ranks(2, [](const BackendPtr& backend, int rank) {
    for (const char* plan : {"dense", "int8"}) {
      at::Tensor values = at::full({4}, 1.0 + rank).requires_grad_();
      all_reduce(values, Plan::parse(plan), backend, ReduceOp::sum, std::chrono::seconds(20));
      EXPECT_TRUE(at::allclose(values, at::full({4}, 3.0), 0.02)) << plan;
    }
    at::Tensor none;
    EXPECT_NE(refusal_of([&] {
                all_reduce(none, Plan::parse("int8"), backend, ReduceOp::sum, std::chrono::seconds(20));
              }).find("got an undefined one"),
              std::string::npos);
  });
}

// ---- other calls

/// Returns the errors of two ranks that each run `body` with their engine.
std::vector<std::string> said(bool shared_memory, const std::function<void(ZeroRank&, int)>& body) {
  std::vector<std::string> said(2);
  run_ranks(2, [&](const BackendPtr& backend, int rank) {
    ZeroRank mine(backend, 3, kUnlikeShapes, over(shared_memory));
    try {
      body(mine, rank);
    } catch (const Error& error) {
      said[static_cast<std::size_t>(rank)] = error.what();
    }
  });
  return said;
}

void expect_says(const std::string& said, int rank, const std::string& doing) {
  EXPECT_NE(said.find("rank " + std::to_string(rank)), std::string::npos) << said;
  EXPECT_NE(said.find("rank " + std::to_string(1 - rank)), std::string::npos) << said;
  EXPECT_NE(said.find("; it happened in " + doing + " (graph 0, "), std::string::npos) << said;
  EXPECT_TRUE(said.ends_with(", rank " + std::to_string(rank) + ")")) << said;
}

TEST(UnlikeRanksTest, OtherParametersAreFoundOnAllRanks) {
  for (const bool shared_memory : {true, false}) {
    for (const long other : {1L, 3L}) {  // a parameter of another size, and one of the same size
      const auto answers = said(shared_memory, [&](ZeroRank& mine, int rank) { mine.gathered(rank * other); });
      expect_says(answers[0], 0, "the gather of parameter 0");
      expect_says(answers[1], 1, "the gather of parameter " + std::to_string(other));
    }
  }
}

TEST(UnlikeRanksTest, OtherGradientsAreFoundOnAllRanks) {
  for (const bool shared_memory : {true, false}) {
    const auto answers = said(shared_memory, [&](ZeroRank& mine, int rank) {
      mine.engine.start_backward(true);
      for (const long id : rank == 0 ? std::vector<long>{0, 3} : std::vector<long>{3, 0}) {
        mine.engine.reduce_grad(mine.whole(id), ZeroRank::kGraph, id);
      }
      mine.engine.end_backward(ZeroRank::kGraph);
    });
    expect_says(answers[0], 0, "the sum of the gradients of parameter 0, parameter 3");
    expect_says(answers[1], 1, "the sum of the gradients of parameter 3, parameter 0");
  }
}

TEST(UnlikeRanksTest, AGatherWhereAnotherRankAddsUpIsFound) {
  for (const bool shared_memory : {true, false}) {
    const auto answers = said(shared_memory, [&](ZeroRank& mine, int rank) {
      if (rank == 0) {
        mine.gathered(4);
        return;
      }
      mine.engine.start_backward(true);
      mine.engine.reduce_grad(mine.whole(2), ZeroRank::kGraph, 2);
      mine.engine.end_backward(ZeroRank::kGraph);
    });
    expect_says(answers[0], 0, "the gather of parameter 4");
    expect_says(answers[1], 1, "the sum of the gradients of parameter 2");
  }
}

// ---- other arguments

TEST(UnlikeRanksTest, OtherPlansSeedsAndParametersAreFoundBeforeTheFirstStep) {
  struct Arguments {
    std::string plan = "dense";
    ParameterInfo parameter = {"w", 1000, false};
    std::uint64_t seed = 0;
  };
  const std::vector<Arguments> all = {{},
                                      {.plan = "int4+ef"},
                                      {.parameter = {"w", 1200, false}},
                                      {.parameter = {"v", 1000, false}},
                                      {.parameter = {"w", 1000, true}},
                                      {.parameter = {"w", 1000, false, 10}},
                                      {.seed = 3}};
  for (const Arguments& other : all) {
    const bool is_same = &other == &all.front();
    run_ranks(2, [&](const BackendPtr& backend, int rank) {
      const Arguments own = rank == 0 ? Arguments{} : other;
      Compressor compressor(std::make_unique<Wire>(backend, std::chrono::seconds(20)), Plan::parse(own.plan),
                            {own.parameter}, {.seed = own.seed});
      if (is_same) return compressor.require_same_on_all_ranks();
      EXPECT_NE(refusal_of([&] { compressor.require_same_on_all_ranks(); }, ErrorCode::communication)
                    .find("have another plan, seed or other parameters"),
                std::string::npos);
    });
  }
}

// ---- a missing wait

TEST(UnlikeRanksTest, WhatWasNotWaitedForCannotBeRead) {
  run_ranks(2, [](const BackendPtr& backend, int) {
    ZeroRank mine(backend, 3, kUnlikeShapes);
    const at::Tensor whole = mine.engine.allgather_param(ZeroRank::kGraph, 0);
    try {
      whole.sum();
      ADD_FAILURE() << "it was read";
    } catch (const c10::Error& error) {
      EXPECT_NE(std::string(error.what()).find("parameter 0 is on its way to this rank"), std::string::npos);
    }
    EXPECT_TRUE(at::equal(mine.engine.wait_allgather(whole, ZeroRank::kGraph, 0), mine.whole(0)));
  });
}

TEST(UnlikeRanksTest, AGraphThatHasNotWaitedForAGatherIsRefusedBeforeTheStep) {
  run_ranks(2, [](const BackendPtr& backend, int) {
    ZeroRank mine(backend, 3, kUnlikeShapes);
    const auto backward = [&] {
      mine.engine.start_backward(true);
      mine.engine.end_backward(ZeroRank::kGraph);
    };
    (void)mine.engine.allgather_params_fused(ZeroRank::kGraph, {0, 2});
    const auto fresh = mine.engine.allgather_params_fused(ZeroRank::kGraph, {1});
    mine.engine.wait_params(fresh, ZeroRank::kGraph, {1});
    const std::string said = refusal_of(backward);
    EXPECT_NE(said.find("the gather of parameter 0, parameter 2 was not waited for"), std::string::npos) << said;
    backward();  // the error was already reported

    (void)mine.engine.allgather_params_fused(ZeroRank::kGraph, {0});
    mine.engine.give_up_pass();
    backward();
    const auto again = mine.engine.allgather_params_fused(ZeroRank::kGraph, {0});
    mine.engine.wait_params(again, ZeroRank::kGraph, {0});
    EXPECT_TRUE(at::equal(again[0], mine.whole(0)));
  });
}

/// Its values never come. Memory that a program has given is the program's again.
TEST(UnlikeRanksTest, WhatAnEngineThatIsGoneHadUnderWayCannotBeReadUnlessItsMemoryWasGiven) {
  run_ranks(2, [](const BackendPtr& backend, int) {
    at::Tensor made;
    const at::Tensor given = at::empty(kUnlikeShapes[1]);
    {
      ZeroRank mine(backend, 3, kUnlikeShapes);
      made = mine.engine.allgather_param(ZeroRank::kGraph, 0);
      mine.engine.gather_into(ZeroRank::kGraph, {1}, {given});
    }
    EXPECT_THROW(made.sum(), c10::Error);
    EXPECT_EQ(given.sum().numel(), 1);
  });
}

}  // namespace

}  // namespace octavo
