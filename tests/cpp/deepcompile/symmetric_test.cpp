// SPDX-License-Identifier: Apache-2.0
// The symmetric memory of ZeRO's engine, by DeepSpeed's names.
#include "octavo/deepcompile/symmetric.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "octavo/comm/shared/host_ranks.h"
#include "octavo/deepcompile/engine.h"
#include "octavo/kernels/error.h"
#include "tests/cpp/ranks.h"
#include "tests/cpp/refusal.h"

namespace octavo {

namespace {

using thread_ranks::BackendPtr;
using thread_ranks::run_ranks;

/// Returns an engine with parameters of 30 and 7 elements, in float64 and float32.
std::unique_ptr<dc::Engine> engine_of(const BackendPtr& backend, std::optional<bool> symmetric_memory) {
  const auto group = c10::make_intrusive<c10d::ProcessGroup>(backend->getRank(), backend->getSize());
  dc::EngineOptions options;
  options.symmetric_memory = symmetric_memory;
  auto engine = std::make_unique<dc::Engine>(group, backend, 100, options);
  for (const auto& [id, count, dtype] : {std::tuple{0L, 30, at::kDouble}, std::tuple{1L, 7, at::kFloat}}) {
    const auto own = static_cast<std::int64_t>(engine->owned(static_cast<std::uint64_t>(count)).count);
    engine->register_z3_param(id, {count}, at::ones({own}, dtype), at::zeros({own}, dtype), false);
  }
  return engine;
}

TEST(EngineSymmetricMemory, TheWorkspaceIsThatOfTheLargestShard) {
  run_ranks(4, [](const BackendPtr& backend, int rank) {
    const auto engine = engine_of(backend, std::nullopt);
    EXPECT_NE(refusal_of([&] { engine->getSymmMemWorkspace(8); }).find("from the first graph on"), std::string::npos);
    engine->lazy_init_symm_memory();
    EXPECT_FALSE(engine->symm_mem);
    engine->register_graph_z3(0, {0, 1});
    EXPECT_TRUE(engine->use_symm_mem);
    engine->lazy_init_symm_memory();
    auto* const made = engine->symm_mem.get();
    ASSERT_TRUE(made);
    EXPECT_EQ(made->get_buffer_size(), 8U * sizeof(double));
    engine->lazy_init_symm_memory();
    EXPECT_EQ(engine->symm_mem.get(), made);
    made->get_buffer(rank, {8}, at::kDouble, 0).fill_(rank + 0.5);
    made->barrier(0, 0);
    for (int peer = 0; peer < 4; ++peer) {
      EXPECT_EQ(made->get_buffer(peer, {8}, at::kDouble, 0)[7].item<double>(), peer + 0.5);
    }
    EXPECT_NE(refusal_of([&] { engine->getSymmMemWorkspace(0); }).find("at least 1 byte"), std::string::npos);
    made->barrier(0, 0);
  });
}

TEST(EngineSymmetricMemory, TheFirstForwardPassMakesItForAProgramThatWantsIt) {
  run_ranks(2, [](const BackendPtr& backend, int) {
    for (const bool wants : {false, true}) {
      const auto engine = engine_of(backend, std::nullopt);
      if (wants) engine->use_symm_mem = true;
      engine->register_graph_z3(0, {0, 1});
      engine->start_forward();
      EXPECT_EQ(static_cast<bool>(engine->symm_mem), wants);
      auto* const made = engine->symm_mem.get();
      engine->start_forward();
      EXPECT_EQ(engine->symm_mem.get(), made);
    }
  });
}

TEST(EngineSymmetricMemory, OneRankHasAWorkspaceOfItsOwn) {
  run_ranks(1, [](const BackendPtr& backend, int) {
    const auto engine = engine_of(backend, std::nullopt);
    engine->register_graph_z3(0, {0, 1});
    const auto workspace = engine->getSymmMemWorkspace(256);
    EXPECT_EQ(workspace->get_buffer_size(), 256U);
    workspace->get_buffer(0, {32}, at::kDouble, 0).fill_(2.5);
    workspace->barrier(0, 0);
    EXPECT_EQ(workspace->get_buffer(0, {32}, at::kDouble, 0)[31].item<double>(), 2.5);
  });
}

/// One bucket for each parameter, and more of them than transfers may be under way.
TEST(EngineSymmetricMemory, AStepMayHaveMoreBucketsThanThereArePlaces) {
  run_ranks(2, [](const BackendPtr& backend, int rank) {
    constexpr long kCount = HostRanks::kSlots + 100;
    const auto group = c10::make_intrusive<c10d::ProcessGroup>(backend->getRank(), backend->getSize());
    dc::Engine engine(group, backend, /*bucket_size=*/2,
                      {.timeout = std::chrono::milliseconds(4000), .symmetric_memory = true});
    const at::Tensor values = at::zeros({kCount, 2});
    std::vector<long> ids;
    for (long id = 0; id < kCount; ++id) {
      engine.register_param(id, {2}, values[id], at::zeros({1}), rank);
      ids.push_back(id);
    }
    engine.register_graph_z2(0, ids);
    engine.start_backward(true);
    for (const long id : ids) engine.reduce_grad(at::full({2}, rank + 1.0F), 0, id);
    engine.end_backward(0);
    EXPECT_EQ(engine.param_registry->getParam(kCount - 1).getGradBuffer().item<float>(), 1.5F);
    values.select(1, rank).fill_(rank + 1);
    engine.gather_updated();
    EXPECT_TRUE(at::equal(values, at::arange(1, 3, at::kFloat).expand({kCount, 2})));
  });
}

TEST(EngineSymmetricMemory, IsRefusedWhereThereIsNone) {
  run_ranks(2, [](const BackendPtr& backend, int) {
    const auto engine = engine_of(backend, false);
    engine->register_graph_z3(0, {0, 1});
    EXPECT_FALSE(engine->use_symm_mem);
    EXPECT_EQ(engine->why_no_symmetric_memory(), "it was not wanted");
    engine->lazy_init_symm_memory();
    EXPECT_FALSE(engine->symm_mem);
    const std::string said = refusal_of([&] { engine->getSymmMemWorkspace(8); }, ErrorCode::unsupported);
    EXPECT_NE(said.find("the ranks share no memory"), std::string::npos) << said;
    const std::string of_device =
        refusal_of([&] { dc::make_symmetric_memory(backend, "", c10::kMeta, 8, std::chrono::seconds(1)); },
                   ErrorCode::unsupported);
    EXPECT_NE(of_device.find("this build of torch has no symmetric memory on meta"), std::string::npos) << of_device;
  });
}

}  // namespace

}  // namespace octavo
