// SPDX-License-Identifier: Apache-2.0
// The functions, variables and flags of DeepSpeed's deepcompile.h, used through the public header. They belong to one
// engine.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "octavo/deepcompile.h"
#include "octavo/device/pinned.h"
#include "tests/cpp/ranks.h"
#include "tests/cpp/refusal.h"
#include "tests/cpp/zero_rank.h"

namespace octavo {

namespace {

using thread_ranks::BackendPtr;
using thread_ranks::run_ranks;

/// Makes the process the only rank, on the test's own thread.
class DefaultEngineTest : public testing::Test {
 protected:
  void SetUp() override {
    const auto meeting = std::make_shared<thread_ranks::Meeting>(1);
    group_ = process_group_of(c10::make_intrusive<thread_ranks::ThreadBackend>(meeting, 0, 1));
    dc::init(group_, {}, /*bucket_size=*/1000);
  }
  void TearDown() override { dc::cleanup(); }

  void register_z3_graph(long graph_id) {
    dc::register_z3_param(0, {4, 3}, values_, gradient_, /*persistent=*/false);
    dc::register_graph_z3(graph_id, {0});
  }

  c10::intrusive_ptr<c10d::ProcessGroup> group_;
  at::Tensor values_ = at::arange(12.0, at::kFloat), gradient_ = at::empty({12});
};

TEST_F(DefaultEngineTest, VariablesAreTheEnginesOwn) {
  EXPECT_EQ(dc::process_group.get(), group_.get());
  EXPECT_EQ(&dc::param_registry, &dc::default_engine().param_registry);
  EXPECT_EQ(dc::reduce_buckets, nullptr);
  register_z3_graph(7);
  EXPECT_TRUE(dc::param_registry->hasParam(0));
  EXPECT_NE(dc::reduce_buckets, nullptr);
  EXPECT_EQ(dc::executors.size(), 1U);
  dc::reset();
  EXPECT_TRUE(dc::executors.empty());
  EXPECT_TRUE(dc::param_registry->hasParam(0));
  dc::cleanup();
  EXPECT_EQ(dc::process_group.get(), nullptr);
  EXPECT_EQ(dc::reduce_buckets, nullptr);
  EXPECT_FALSE(dc::param_registry->hasParam(0));
  EXPECT_NE(refusal_of([&] { register_z3_graph(7); }).find("call init() first"), std::string::npos);
  EXPECT_NE(refusal_of([] { dc::start_backward(true); }).find("register one first"), std::string::npos);
  dc::init(group_, {}, 10);
  EXPECT_NE(refusal_of([&] { dc::init(group_, {}, 10); }).find("call cleanup() first"), std::string::npos);
}

TEST_F(DefaultEngineTest, TheExamplesOfTheHeader) {
  constexpr long graph_id = 3;
  dc::param_registry->registerParam(1, {1024, 768}, at::zeros({1024 * 768}), at::ones({1024 * 768}), true, 0, false);
  register_z3_graph(graph_id);
  ASSERT_TRUE(dc::hasKey(dc::executors, graph_id));
  auto executor = dc::getExecutor<dc::Z3CustomOpExecutor>(graph_id, dc::executors);
  EXPECT_TRUE(executor->hasParam(0));
  EXPECT_NE(refusal_of([] { dc::getExecutor<dc::Z1CustomOpExecutor>(graph_id, dc::executors); }).find("another stage"),
            std::string::npos);
  dc::executors[graph_id + 1] = executor;  // an executor that the program itself has made
  EXPECT_EQ(&dc::engine_of(graph_id + 1), &dc::default_engine());
  dc::end_backward({}, graph_id + 1, /*release_reduce_buckets=*/false);
}

/// An executor that a program puts in the map, as the header says: keeps the gradients of its bucket.
class KeepingExecutor final : public dc::CustomOpExecutor {
 public:
  using CustomOpExecutor::CustomOpExecutor;
  at::Tensor kept;

 private:
  void flushReduceBucket(at::ScalarType scalar_type) override {
    blockCopyEvents(scalar_type);
    applyPreDivision(scalar_type);
    kept = reduce_tasks_.at(scalar_type).front().getSendBuf().clone();
    performCleanup(scalar_type);
  }
};

TEST_F(DefaultEngineTest, AnExecutorOfTheProgramsOwnNeedsNoRegisteredGraph) {
  constexpr long graph = 7;
  const c10::Stream stream(c10::Stream::DEFAULT, c10::DeviceType::CPU);
  const auto buckets = std::make_shared<dc::DoubleBufferedReduceBucket>(10, true);
  dc::param_registry->registerParam(0, {4}, at::zeros({4}), at::zeros({4}), false, 0, false);
  const auto own = std::make_shared<KeepingExecutor>(dc::process_group, dc::param_registry, buckets,
                                                     std::vector<long>{0}, stream, stream, false);
  dc::executors[graph] = own;
  for (const bool releases : {false, true}) {
    own->kept = at::Tensor();
    dc::start_forward();
    dc::end_forward();
    dc::start_backward(true);
    dc::reduce_grad(at::full({4}, 9.0), graph, 0);
    dc::default_engine().give_up_pass();
    dc::start_backward(true);
    dc::reduce_grad(at::ones({4}), graph, 0);
    dc::end_backward(c10::IValue(), graph, releases);
    EXPECT_TRUE(at::equal(own->kept, at::ones({4})));
  }
  dc::default_engine().finish_backward(graph, 0);
  dc::default_engine().drop_gradients();
  EXPECT_EQ(dc::default_engine().sent_bytes(), 0U);
  EXPECT_NE(refusal_of([] { dc::register_graph_z3(1, {0}); }).find("register parameters before"), std::string::npos);
  dc::register_z3_param(1, {12}, values_, gradient_, false);
  EXPECT_NE(refusal_of([] { dc::register_graph_z3(1, {0}); }).find("parameter 0, which is only in the registry"),
            std::string::npos);
  dc::pre_div_reduce = true;  // before the first graph of the engine; the executor has buckets of its own
  dc::register_graph_z3(1, {1});
  dc::pre_div_reduce = false;
  EXPECT_NE(refusal_of([] { dc::register_graph_z3(2, {1}); }).find("shares its buckets with 1 other graphs"),
            std::string::npos);
  dc::reset();
  EXPECT_TRUE(dc::executors.empty());
}

TEST_F(DefaultEngineTest, ANullExecutorIsRefusedByTheNumberOfItsGraph) {
  dc::executors[7] = nullptr;
  for (const std::string& said : {refusal_of([] { dc::start_forward(); }), refusal_of([] { dc::end_forward(); }),
                                  refusal_of([] { dc::start_backward(true); })}) {
    EXPECT_NE(said.find("the executor of graph 7 is null"), std::string::npos) << said;
  }
  dc::default_engine().give_up_pass();
}

TEST_F(DefaultEngineTest, AStepOfStage3) {
  constexpr long graph = 3;
  register_z3_graph(graph);
  const at::Tensor traced = at::empty({4, 3}), whole = values_.view({4, 3});
  for (int step = 0; step < 2; ++step) {
    dc::start_forward();
    dc::prefetch_params_fused(graph, {traced}, {0});
    at::Tensor gathered = dc::wait_allgather(dc::allgather_param(traced, graph, 0), graph, 0);
    EXPECT_TRUE(at::equal(gathered, whole));
    EXPECT_TRUE(dc::release_param(gathered, graph, 0, 1).is_same(gathered));
    EXPECT_EQ(dc::param_registry->state(0), dc::Gathered::released);
    dc::end_forward();
    dc::start_backward(true);
    EXPECT_EQ(dc::reduce_grad(whole, graph, 0).numel(), 0);
    dc::end_backward(c10::IValue(), graph, true);
    EXPECT_TRUE(at::equal(gradient_, values_));
    dc::set_persistent(0);
    dc::wait_allgather(dc::allgather_param(traced, graph, 0, at::kBFloat16), graph, 0);
    dc::invalidate_gathered_param(0);
    EXPECT_FALSE(dc::param_registry->isValid(0));
    EXPECT_TRUE(dc::param_registry->hasGatheredParam(0));
    dc::param_registry->setPersistent(0, false);
    dc::clear_all_gathered_params();
    EXPECT_FALSE(dc::param_registry->hasGatheredParam(0));
  }
  dc::offload_parameter(values_, graph, 0);
  dc::reload_parameter(values_, graph, 0);
  EXPECT_TRUE(at::equal(dc::test_call(values_), values_));
  EXPECT_FALSE(dc::test_call(values_).is_alias_of(values_));
}

TEST_F(DefaultEngineTest, StepsOfStages1And2) {
  for (const bool is_first : {true, false}) {
    dc::cleanup();
    dc::init(group_, {}, 1000);
    dc::register_param(0, {12}, values_, {}, 0);
    is_first ? dc::register_graph_z1(5, {0}) : dc::register_graph_z2(5, {0});
    dc::update_param_grad_buffer(0, gradient_);
    for (const bool update : {false, true}) {
      dc::start_backward(update);
      dc::reduce_grad(values_, 5, 0);
      dc::end_backward(c10::IValue(), 5, update);
    }
    EXPECT_TRUE(at::equal(gradient_, values_ * 2));
  }
}

TEST_F(DefaultEngineTest, FunctionsForTracingKeepShapesAndDoNothing) {
  const at::Tensor traced = at::empty({4, 3}, at::device(at::kMeta).dtype(at::kFloat));
  const at::Tensor gathered = dc::allgather_param_meta(traced, 99, 0, at::kBFloat16);
  EXPECT_TRUE(gathered.is_meta() && gathered.sizes() == traced.sizes() && gathered.scalar_type() == at::kBFloat16);
  EXPECT_EQ(dc::allgather_param_meta(traced, 99, 0).scalar_type(), at::kFloat);
  EXPECT_TRUE(dc::wait_allgather_meta(gathered, 99, 0).is_same(gathered));
  EXPECT_TRUE(dc::release_param_meta(gathered, 99, 0, 1).is_same(gathered));
  EXPECT_EQ(dc::reduce_grad_meta(traced, 99, 0).numel(), 0);
  for (const auto& moved :
       {dc::offload_tensor_meta, dc::reload_tensor_meta, dc::wait_offload_meta, dc::wait_reload_meta}) {
    EXPECT_EQ(moved(traced, 99, 0).sizes(), traced.sizes());
  }
  dc::prefetch_params_fused_meta(99, {traced}, {0});
  dc::end_backward_meta(c10::IValue(), 99, true);
  dc::free_tensors_meta({traced});
  dc::offload_parameter_meta(traced, 99, 0);
  dc::reload_parameter_meta(traced, 99, 0);
  EXPECT_EQ(traced.numel(), 12);
}

TEST_F(DefaultEngineTest, WhatWasNotGatheredIsNoWholeParameter) {
  constexpr long graph = 3;
  for (const long id : {0L, 1L}) dc::register_z3_param(id, {4, 3}, values_.clone(), at::empty({12}), false);
  dc::register_graph_z3(graph, {0, 1});
  for (const auto& dtypes : {std::vector{at::kHalf}, std::vector{at::kHalf, at::kHalf, at::kHalf}}) {
    EXPECT_NE(
        refusal_of([&] { dc::prefetch_params_fused(graph, {}, {0, 1}, dtypes); }).find("for each of 2 parameters"),
        std::string::npos);
  }
  EXPECT_EQ(dc::param_registry->state(0), dc::Gathered::sharded);

  const at::Tensor gathered = dc::allgather_param({}, graph, 0), whole = values_.view({4, 3});
  for (const at::Tensor& other : {at::Tensor(), at::zeros({4, 3}), at::zeros({3, 4}, at::kHalf), at::zeros({12}),
                                  at::zeros({4, 3}, at::kLong), dc::allgather_param({}, graph, 1)}) {
    EXPECT_NE(refusal_of([&] { dc::wait_allgather(other, graph, 0); }).find("allgather_param() has returned"),
              std::string::npos);
  }
  EXPECT_EQ(dc::param_registry->state(0), dc::Gathered::in_flight);
  EXPECT_TRUE(dc::wait_allgather(gathered, graph, 0).is_same(gathered));
  EXPECT_TRUE(at::equal(gathered, whole));
  EXPECT_TRUE(at::equal(dc::wait_allgather(at::zeros({4, 3}, at::kDouble), graph, 0), whole.to(at::kDouble)));
  EXPECT_NE(refusal_of([&] { dc::release_param(gathered, graph, 0, 0); }).find("at least 1 user of parameter 0, got 0"),
            std::string::npos);
  dc::release_param(gathered, graph, 0, 1);
}

// ---- flags

TEST_F(DefaultEngineTest, FlagsAreThoseOfTheConfig) {
  dc::cleanup();
  dc::EngineOptions config;
  config.flags.free_activation_threshold = 17;
  config.flags.sync_after_reduce = config.flags.sync_before_allgather = true;
  dc::init(group_, config, 10);
  EXPECT_EQ(dc::free_activation_threshold, 17);
  EXPECT_TRUE(dc::sync_after_reduce && dc::sync_before_allgather);
  EXPECT_FALSE(dc::sync_before_reduce || dc::sync_after_allgather || dc::pre_div_reduce);
  dc::enable_profiling(true);
  EXPECT_TRUE(dc::is_profiling() && dc::default_engine().flags->profile);
  dc::cleanup();
  EXPECT_FALSE(dc::is_profiling() || dc::sync_after_reduce);
}

/// The value has twelve elements of eight bytes.
TEST_F(DefaultEngineTest, TensorsAreFreedAboveAThresholdInBytes) {
  const at::Tensor value = at::ones({12}, at::kDouble), other = value.alias();
  dc::free_activation_threshold = 96;
  dc::free_tensors({value});
  EXPECT_EQ(value.numel(), 12);
  dc::free_activation_threshold = 95;
  dc::enable_profiling(true);
  dc::free_tensors({value});
  EXPECT_EQ(value.numel(), 12);
  dc::enable_profiling(false);
  EXPECT_NE(refusal_of([&] { dc::free_tensors({value, at::Tensor()}); }).find("an undefined one"), std::string::npos);
  EXPECT_EQ(value.numel(), 12);
  dc::free_tensors({value});
  EXPECT_EQ(value.numel(), 0);
  EXPECT_TRUE(at::equal(other, at::ones({12}, at::kDouble)));  // this alias still holds the memory
}

TEST_F(DefaultEngineTest, ValuesGoToPageLockedMemoryOnlyWhereTheFlagSaysSo) {
  register_z3_graph(1);
  const at::Tensor value = at::rand({33});
  for (const bool is_pinned : {true, false}) {
    dc::offload_activation_pin_memory = is_pinned;
    const long id = is_pinned ? 1 : 2;
    const at::Tensor on_host = dc::offload_tensor(value, 1, id);
    EXPECT_EQ(octavo::is_pinned(on_host), is_pinned);
    EXPECT_TRUE(dc::wait_offload(value, 1, id).is_alias_of(on_host));
    const at::Tensor back = dc::reload_tensor(value, 1, id);
    EXPECT_TRUE(dc::wait_reload(value, 1, id).is_same(back));
    EXPECT_TRUE(at::equal(back, value));
    dc::end_backward(c10::IValue(), 1, false);
    EXPECT_NE(refusal_of([&] { dc::wait_reload(value, 1, id); }).find("is on the host: reload it first"),
              std::string::npos);
  }
}

/// Graphs are compiled for the order in which a value was saved.
TEST_F(DefaultEngineTest, AValueComesBackInTheOrderInWhichItWasSent) {
  register_z3_graph(1);
  const at::Tensor picture = at::rand({2, 3, 4, 5});
  const std::vector<at::Tensor> values = {picture.contiguous(at::MemoryFormat::ChannelsLast), picture.transpose(1, 2),
                                          picture.slice(3, 0, 4, 2), picture};
  for (const bool is_pinned : {true, false}) {
    dc::offload_activation_pin_memory = is_pinned;
    for (const at::Tensor& value : values) {
      const std::vector<std::int64_t> order = at::empty_like(value).strides().vec();
      const at::Tensor on_host = dc::offload_tensor(value, 1, 7);
      EXPECT_EQ(on_host.strides(), order);
      EXPECT_EQ(octavo::is_pinned(on_host), is_pinned);
      const at::Tensor back = dc::reload_tensor(value, 1, 7);
      EXPECT_EQ(back.strides(), order);
      EXPECT_TRUE(at::equal(back, value));
    }
  }
}

TEST_F(DefaultEngineTest, AGraphMayRunTwiceBeforeItsBackwardPasses) {
  register_z3_graph(1);
  for (const bool is_pinned : {true, false}) {
    dc::offload_activation_pin_memory = is_pinned;
    const long id = is_pinned ? 1 : 2;
    std::vector<const void*> places;
    for (int step = 0; step < 3; ++step) {
      const at::Tensor first = at::rand({33}), second = at::rand({33});
      const at::Tensor first_on_host = dc::offload_tensor(first, 1, id);
      const at::Tensor second_on_host = dc::offload_tensor(second, 1, id);
      EXPECT_TRUE(at::equal(dc::reload_tensor(second_on_host, 1, id), second));
      EXPECT_TRUE(at::equal(dc::reload_tensor(first_on_host, 1, id), first));
      places.insert(places.end(), {first_on_host.data_ptr(), second_on_host.data_ptr()});
    }
    EXPECT_EQ(std::set(places.begin(), places.end()).size(), 2U);  // each step uses the memory of the step before
  }
}

/// A value that needs more memory than there is, and no memory itself.
TEST_F(DefaultEngineTest, AValueForWhichTheHostHasNoMemoryWasNotSent) {
  register_z3_graph(1);
  const at::Tensor huge = at::zeros({1}).expand({1LL << 58}), value = at::rand({5});
  for (const bool is_pinned : {true, false}) {
    dc::offload_activation_pin_memory = is_pinned;
    EXPECT_ANY_THROW(dc::offload_tensor(huge, 1, 4));
    EXPECT_NE(refusal_of([&] { dc::wait_offload(huge, 1, 4); }).find("value 4 was not sent"), std::string::npos);
    EXPECT_NE(refusal_of([&] { dc::reload_tensor(huge, 1, 4); }).find("value 4 was not sent"), std::string::npos);
  }
  EXPECT_NE(refusal_of([] { dc::offload_tensor({}, 1, 4); }).find("an undefined one"), std::string::npos);
  dc::offload_tensor(value, 1, 5);
  EXPECT_ANY_THROW(dc::offload_tensor(huge, 1, 5));
  EXPECT_TRUE(at::equal(dc::reload_tensor(value, 1, 5), value));
}

TEST_F(DefaultEngineTest, AfterAllgatherOrReduceTheResultIsThereWhereAFlagAsksForIt) {
  dc::register_z3_param(0, {12}, values_, gradient_, false);
  dc::register_z3_param(1, {12}, values_, at::empty({12}), false);
  dc::register_graph_z3(1, {0, 1});
  dc::allgather_param(values_, 1, 0);
  EXPECT_EQ(dc::param_registry->state(0), dc::Gathered::in_flight);
  dc::sync_after_allgather = true;
  dc::allgather_param(values_, 1, 1);
  EXPECT_EQ(dc::param_registry->state(1), dc::Gathered::available);
  EXPECT_EQ(dc::param_registry->state(0), dc::Gathered::in_flight);

  for (const bool waits : {false, true}) {
    dc::sync_after_reduce = waits;
    gradient_.fill_(-1);
    dc::start_backward(true);
    dc::reduce_grad(values_, 1, 0);
    dc::reduce_grad(at::zeros({12}), 1, 1);
    dc::reduce_buckets->getBuffer(at::kFloat)->allocate(1000 - 24);  // now the bucket is full
    dc::reduce_grad(values_, 1, 0);
    EXPECT_EQ(at::equal(gradient_, values_), waits);
    dc::end_backward(c10::IValue(), 1, true);
    EXPECT_TRUE(at::equal(gradient_, values_ * 2));
  }
}

/// A third of the smallest value of a dtype becomes zero in it.
TEST(EngineFlags, DivisionBeforeTheSumIsInTheGradientsOwnDtype) {
  run_ranks(3, [](const BackendPtr& backend, int rank) {
    for (const bool divides_before : {false, true}) {
      dc::EngineOptions options;
      options.flags.pre_div_reduce = divides_before;
      ZeroRank own(backend, 2, {{7}}, options);
      const at::Tensor least = at::full({7}, 0x1p-24, at::kHalf);
      own.backward({least}, true);
      EXPECT_TRUE(own.gradients[0].eq(divides_before ? 0 : 0x1p-24).all().item<bool>());
      own.backward({at::full({7}, 3.0 * rank)}, true);
      EXPECT_TRUE(own.gradients[0].eq(3).all().item<bool>());
    }
  });
}

TEST(DefaultEngine, ItNeedsAProcessGroupAndABackend) {
  EXPECT_NE(refusal_of([] { dc::init({}, {}, 10); }).find("expected a process group, got none"), std::string::npos);
  const auto group = c10::make_intrusive<c10d::ProcessGroup>(0, 1);
  EXPECT_NE(refusal_of([&] { dc::Engine(group, {}, 10); }).find("got no backend"), std::string::npos);
  EXPECT_NE(refusal_of([&] { dc::Engine({}, {}, 10); }).find("got no process group"), std::string::npos);
}

TEST(DefaultEngine, AProcessGroupHasToSendMemoryOfTheCpu) {
  try {
    dc::init(c10::make_intrusive<c10d::ProcessGroup>(0, 1), {}, 10);
    FAIL() << "expected an error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::unsupported);
    EXPECT_NE(std::string(error.what()).find("cpu:gloo"), std::string::npos) << error.what();
  }
}

}  // namespace

}  // namespace octavo
