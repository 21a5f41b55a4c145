// SPDX-License-Identifier: Apache-2.0
// The classes of DeepSpeed's deepcompile.h: its usage examples, and what the classes refuse.
#include "octavo/deepcompile.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "tests/cpp/ranks.h"
#include "tests/cpp/refusal.h"

namespace octavo {

namespace {

using thread_ranks::BackendPtr;
using thread_ranks::run_ranks;

const c10::Stream kHostStream(c10::Stream::DEFAULT, c10::DeviceType::CPU);

c10::intrusive_ptr<c10d::ProcessGroup> group_of(const BackendPtr& backend) {
  auto group = c10::make_intrusive<c10d::ProcessGroup>(backend->getRank(), backend->getSize());
  group->setBackend(c10::DeviceType::CPU, c10d::ProcessGroup::BackendType::CUSTOM, backend);
  return group;
}

/// The documented example of an executor: all-reduces its buckets and keeps the mean of each gradient.
class MeanExecutor final : public dc::CustomOpExecutor {
 public:
  using CustomOpExecutor::CustomOpExecutor;
  std::map<long, at::Tensor> means;
  int flushes = 0;

 private:
  void flushReduceBucket(at::ScalarType scalar_type) override {
    ++flushes;
    blockCopyEvents(scalar_type);
    applyPreDivision(scalar_type);
    const auto bucket = reduce_buckets_->getBuffer(scalar_type);
    std::vector<at::Tensor> all = {bucket->getBuffer().narrow(0, 0, bucket->getOffset())};
    c10d::AllreduceOptions options;
    options.reduceOp = getReductionOp();
    process_group_->allreduce(all, options)->wait();
    for (const dc::ReduceTask& task : reduce_tasks_.at(scalar_type)) {
      means[task.getDSId()] = task.getSendBuf().clone();
    }
    performCleanup(scalar_type);
  }
};

struct Rank {
  std::shared_ptr<dc::DSParamRegistry> registry = std::make_shared<dc::DSParamRegistry>();
  std::shared_ptr<dc::DoubleBufferedReduceBucket> buckets;
  std::unique_ptr<MeanExecutor> executor;

  /// Has the parameters 0, 1, ... with these sizes.
  Rank(const BackendPtr& backend, const std::vector<std::int64_t>& sizes, std::int64_t bucket, bool divides_before)
      : buckets(std::make_shared<dc::DoubleBufferedReduceBucket>(bucket, /*enable_double_buffer=*/true)) {
    std::vector<long> ids;
    for (const std::int64_t size : sizes) {
      ids.push_back(static_cast<long>(ids.size()));
      registry->registerParam(ids.back(), {size}, at::zeros({size}), {}, false, 0, false);
    }
    executor = std::make_unique<MeanExecutor>(group_of(backend), registry, buckets, ids, kHostStream, kHostStream,
                                              divides_before);
  }
};

// ---- parameters

TEST(DSParamTest, TheExampleOfTheHeader) {
  const at::Tensor shard = at::randn({512 * 768}), buffer = at::ones({512 * 768});
  dc::DSParam param(0, {1024, 768}, shard, buffer, true, 0, false);
  param.offload();
  param.reload();
  EXPECT_TRUE(param.getDSTensor().is_same(shard));
  EXPECT_EQ(param.getId(), 0);
  EXPECT_EQ(param.getShape(), (std::vector<std::int64_t>{1024, 768}));
  EXPECT_EQ(param.getDtype(), at::kFloat);
  EXPECT_TRUE(param.getGradBuffer().is_same(buffer));
  EXPECT_TRUE(param.isPartitioned());
  EXPECT_EQ(param.getOffset(), 0);
  EXPECT_FALSE(param.isPersistent());
  param.setPersistent(true);
  EXPECT_TRUE(param.isPersistent());
}

TEST(DSParamTest, WhatContradictsItselfIsRefused) {
  const at::Tensor six = at::zeros({6});
  EXPECT_EQ(refusal_of([&] { dc::DSParam(7, {2, 4}, six, {}, false, 0, false); }),
            "[deepcompile.parameter] expected 8 elements of parameter 7, whose shape is [2, 4], got 6");
  EXPECT_NE(refusal_of([&] { dc::DSParam(7, {5}, six, {}, true, 0, false); }).find("at most 5 elements"),
            std::string::npos);
  EXPECT_NE(refusal_of([&] { dc::DSParam(7, {6}, six, {}, false, 9, false); }).find("an offset of parameter 7 from 0"),
            std::string::npos);
  EXPECT_NE(
      refusal_of([&] { dc::DSParam(7, {6}, six, at::zeros({6}, at::kLong), false, 0, false); }).find("as at most"),
      std::string::npos);
  EXPECT_NE(refusal_of([&] {
              dc::DSParam(7, {6}, six, at::zeros({5}), false, 2, false);
            }).find("gradient buffer of parameter 7 as at most 4 floats"),
            std::string::npos);
  // A flat view of such a buffer is a copy: the gradient that goes there would be lost.
  EXPECT_NE(refusal_of([&] {
              dc::DSParam(7, {6}, six, at::zeros({3, 2}).t(), false, 0, false);
            }).find("in row-major order on cpu, got Float[2, 3] with strides [1, 2]"),
            std::string::npos);
  for (const auto dtype : {at::kLong, at::kComplexFloat}) {
    EXPECT_NE(refusal_of([&] {
                dc::DSParam(7, {6}, at::zeros({6}, dtype), {}, true, 0, false);
              }).find("expected parameter 7 of a real floating dtype, got " + std::string(toString(dtype))),
              std::string::npos);
  }
}

TEST(DSParamTest, AShapeThatCannotBeCountedIsRefused) {
  const at::Tensor six = at::zeros({6}), none = at::zeros({0});
  for (const auto& shape : std::vector<std::vector<std::int64_t>>{{-2, -3}, {-2, 3}, {-1, 0}}) {
    EXPECT_NE(refusal_of([&] { dc::DSParam(7, shape, six, {}, true, 0, false); }).find("at least 0 of parameter 7"),
              std::string::npos);
  }
  EXPECT_NE(refusal_of([&] { dc::DSParam(7, {1LL << 32, 1LL << 32}, none, {}, true, 0, false); }).find("at most"),
            std::string::npos);
  EXPECT_NE(refusal_of([&] { dc::DSParam(7, {6}, {}, {}, false, 0, false); }).find("got an undefined one"),
            std::string::npos);
  EXPECT_EQ(dc::DSParam(7, {1LL << 32, 1LL << 32, 0}, none, {}, false, 0, false).getShape().size(), 3U);
  dc::DSParamRegistry registry;
  registry.registerParam(7, {0}, none, {}, false, 0, false);
  EXPECT_NE(refusal_of([&] { registry.registerGatheredParam(7, {}); }).find("got an undefined tensor"),
            std::string::npos);
}

// ---- the registry

TEST(DSParamRegistryTest, TheExampleOfTheHeader) {
  auto registry = std::make_shared<dc::DSParamRegistry>();
  const at::Tensor buffer = at::ones({4});
  registry->registerParam(0, {8}, at::arange(4.), buffer, true, 0, false);
  EXPECT_TRUE(at::equal(buffer, at::zeros({4})));
  const dc::DSParam& param = registry->getParam(0);
  EXPECT_EQ(param.getId(), 0);
  EXPECT_FALSE(registry->isValid(0));
  registry->setValid(0, true);
  EXPECT_TRUE(registry->isValid(0));
  registry->offload(0);
  registry->reload(0);
  registry->setPersistent(0, true);
  EXPECT_TRUE(param.isPersistent());
}

TEST(DSParamRegistryTest, WholeValuesComeAndGo) {
  dc::DSParamRegistry registry;
  registry.registerParam(3, {8}, at::zeros({4}), {}, true, 0, false);
  EXPECT_EQ(registry.state(3), dc::Gathered::sharded);
  EXPECT_FALSE(registry.hasGatheredParam(3));
  EXPECT_NE(refusal_of([&] { registry.getGatheredParam(3); }).find("parameter 3 is sharded"), std::string::npos);
  registry.unregisterGatheredParam(3);  // there is nothing to release
  EXPECT_NE(refusal_of([&] { registry.beginGather(3); }).find("register memory"), std::string::npos);

  const at::Tensor first = at::empty({8}), second = at::empty({10});
  registry.registerGatheredParam(3, first);
  registry.beginGather(3);
  EXPECT_EQ(registry.state(3), dc::Gathered::in_flight);
  EXPECT_TRUE(registry.getGatheredParam(3).is_same(first));
  EXPECT_FALSE(registry.isValid(3));
  EXPECT_NE(refusal_of([&] { registry.unregisterGatheredParam(3); }).find("being gathered: wait"), std::string::npos);
  EXPECT_NE(refusal_of([&] { registry.registerGatheredParam(3, second); }).find("wait for it"), std::string::npos);
  EXPECT_NE(refusal_of([&] { registry.beginGather(3); }).find("one gather at a time"), std::string::npos);
  registry.endGather(3);
  EXPECT_TRUE(registry.isValid(3));
  EXPECT_NE(refusal_of([&] { registry.endGather(3); }).find("no gather to wait for"), std::string::npos);

  registry.registerGatheredParam(3, second);  // replaces the first tensor, whose values `second` does not have
  EXPECT_TRUE(registry.getGatheredParam(3).is_same(second));
  EXPECT_FALSE(registry.isValid(3));
  registry.beginGather(3);
  registry.endGather(3);
  registry.invalidateAll();
  EXPECT_EQ(registry.state(3), dc::Gathered::available);
  EXPECT_FALSE(registry.isValid(3));
  registry.unregisterGatheredParam(3);
  EXPECT_EQ(registry.state(3), dc::Gathered::released);
  EXPECT_NE(refusal_of([&] { registry.getGatheredParam(3); }).find("parameter 3 is released"), std::string::npos);
  EXPECT_NE(refusal_of([&] { registry.unregisterGatheredParam(3); }).find("once for each gather"), std::string::npos);
}

TEST(DSParamRegistryTest, IdsAreCheckedAndMemoryIsLargeEnough) {
  dc::DSParamRegistry registry;
  EXPECT_EQ(refusal_of([&] { registry.getParam(1); }),
            "[deepcompile.registry] no parameter 1 is registered; 0 others are");
  registry.registerParam(1, {8}, at::zeros({8}), {}, false, 0, false);
  EXPECT_NE(refusal_of([&] { registry.registerParam(1, {2}, at::zeros({2}), {}, false, 0, false); }).find("as [8]"),
            std::string::npos);
  EXPECT_NE(refusal_of([&] { registry.registerGatheredParam(1, at::zeros({7})); }).find("memory for 8 elements"),
            std::string::npos);
  EXPECT_EQ(registry.getParam(1).getShape().front(), 8);
  EXPECT_FALSE(registry.hasGatheredParam(1));
}

// ---- buckets

TEST(ReduceBucketTest, TheExampleOfTheHeader) {
  dc::ReduceBucket bucket(100'000'000, at::kFloat);
  const at::Tensor grad = at::randn({1000});
  if (bucket.shouldFlush(grad.numel())) bucket.reset();
  const at::Tensor slice = bucket.allocate(grad.numel());
  slice.copy_(grad);
  EXPECT_TRUE(at::equal(bucket.getBuffer().narrow(0, 0, 1000), grad));
  EXPECT_EQ(bucket.getSize(), 100'000'000);
  EXPECT_EQ(bucket.getOffset(), 1000);
  EXPECT_EQ(bucket.getScalarType(), at::kFloat);
}

TEST(ReduceBucketTest, ItIsFlushedWhereTheNextDoesNotFitAndGrowsWhereItIsEmpty) {
  dc::ReduceBucket bucket(10, at::kHalf);
  EXPECT_FALSE(bucket.shouldFlush(10));
  EXPECT_TRUE(bucket.shouldFlush(11));  // as seed 003 requires, even where there is nothing to send
  EXPECT_NE(refusal_of([&] { bucket.allocate(11); }).find("expected at most 10 elements"), std::string::npos);
  bucket.reserve(11);
  bucket.allocate(6);
  EXPECT_FALSE(bucket.shouldFlush(5));
  EXPECT_TRUE(bucket.shouldFlush(6));
  EXPECT_NE(refusal_of([&] { bucket.reserve(12); }).find("6 elements in use cannot grow from 11 to 12"),
            std::string::npos);
  bucket.reserve(11);
  EXPECT_EQ(bucket.getOffset(), 6);
  bucket.reset();
  EXPECT_EQ(bucket.allocate(11).numel(), 11);
  EXPECT_NE(refusal_of([&] { bucket.allocate(-1); }).find("at least 0"), std::string::npos);
}

TEST(ReduceBucketTest, SizesThatNobodyHasMemoryFor) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  dc::ReduceBucket bucket(10, at::kFloat);
  bucket.allocate(3);
  EXPECT_TRUE(bucket.shouldFlush(kMost));
  bucket.reset();
  for (const auto& body : {std::function<void()>([&] { bucket.reserve(1LL << 60); }),
                           std::function<void()>([] { dc::ReduceBucket(1LL << 60, at::kFloat); })}) {
    try {
      body();
      ADD_FAILURE() << "expected an error";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::out_of_memory);
      EXPECT_NE(std::string(error.what()).find("a bucket of 1152921504606846976 elements"), std::string::npos);
    }
  }
  EXPECT_EQ(bucket.getSize(), 10);
}

TEST(ReduceBucketTest, TwoBucketsOfADtypeFillInTurn) {
  auto buckets = std::make_shared<dc::DoubleBufferedReduceBucket>(100'000'000, true);
  const auto first = buckets->getBuffer(at::kFloat), half = buckets->getBuffer(at::kHalf);
  const at::Tensor slice = first->allocate(1024);
  EXPECT_NE(buckets->getEvent(at::kFloat), nullptr);
  buckets->swap(at::kFloat, kHostStream, kHostStream);
  EXPECT_EQ(first->getOffset(), 0);
  const auto second = buckets->getBuffer(at::kFloat);
  EXPECT_NE(first, second);
  EXPECT_EQ(buckets->getBuffer(at::kHalf), half);
  buckets->swap(at::kFloat, kHostStream, kHostStream);
  EXPECT_EQ(buckets->getBuffer(at::kFloat), first);
  buckets->clear();
  EXPECT_NE(buckets->getBuffer(at::kFloat), first);

  dc::DoubleBufferedReduceBucket single(8, false);
  const auto only = single.getBuffer(at::kFloat);
  single.swap(at::kFloat, kHostStream, kHostStream);
  EXPECT_EQ(single.getBuffer(at::kFloat), only);
}

// ---- executors

/// The gradients have several dtypes, and one of them is larger than a bucket; there are three steps of two
/// micro-batches.
TEST(CustomOpExecutorTest, EveryGradientBecomesTheMeanOfItsOwn) {
  const std::vector<std::int64_t> sizes = {10, 300, 1, 70, 64};
  const auto gradient = [&](std::size_t i, int rank, int step) {
    const auto dtype = i == 3 ? at::kDouble : at::kFloat;
    return at::full({sizes[i]}, static_cast<double>(i + 1) * (rank + 1) + step, dtype);
  };
  for (const bool divides_before : {true, false}) {
    for (int world = 1; world <= 3; ++world) {
      run_ranks(world, [&](const BackendPtr& backend, int rank) {
        Rank own(backend, sizes, /*bucket=*/100, divides_before);
        for (int step = 0; step < 6; ++step) {
          own.executor->means.clear();
          own.executor->startForward();
          own.executor->endForward();
          own.executor->startBackward(step % 2 == 1);
          for (std::size_t i = 0; i < sizes.size(); ++i) {
            const at::Tensor left = own.executor->reduceGrad(gradient(i, rank, step), static_cast<long>(i));
            EXPECT_EQ(left.numel(), 0);
          }
          EXPECT_FALSE(own.executor->reduceGrad({}, 0).defined());  // the gradient of a parameter that was not used
          own.executor->endBackward();
          ASSERT_EQ(own.executor->means.size(), sizes.size());
          for (std::size_t i = 0; i < sizes.size(); ++i) {
            at::Tensor mean = gradient(i, 0, step);
            for (int r = 1; r < world; ++r) mean = mean + gradient(i, r, step);
            EXPECT_TRUE(at::allclose(own.executor->means[static_cast<long>(i)], mean / world));
          }
        }
      });
    }
  }
}

TEST(CustomOpExecutorTest, ABackwardPassWithoutGradientsSendsNothing) {
  run_ranks(1, [](const BackendPtr& backend, int) {
    Rank own(backend, {4}, 100, true);
    own.executor->reduceGrad(at::ones({4}), 0);
    own.executor->endBackward();
    EXPECT_EQ(own.executor->flushes, 1);
    own.executor->endBackward();
    own.buckets->clear();
    own.executor->endBackward();
    EXPECT_EQ(own.executor->flushes, 1);
  });
}

TEST(CustomOpExecutorTest, AGradientThatIsNotTheParametersIsRefused) {
  run_ranks(1, [](const BackendPtr& backend, int) {
    Rank own(backend, {4, 5}, 100, true);
    EXPECT_EQ(refusal_of([&] { own.executor->reduceGrad(at::ones({4}), 2); }),
              "[deepcompile.executor] parameter 2 does not belong to this graph, which has [0, 1]");
    EXPECT_EQ(
        refusal_of([&] { own.executor->reduceGrad(at::ones({4}), 1); }),
        "[deepcompile.executor] expected the gradient of parameter 1 as floats of shape [5], or flat, on cpu, got "
        "Float[4] on cpu");
    EXPECT_NE(refusal_of([&] { own.executor->reduceGrad(at::ones({5}, at::kLong), 1); }).find("got Long"),
              std::string::npos);
    own.executor->endBackward();
    EXPECT_EQ(own.executor->flushes, 0);
    EXPECT_TRUE(own.executor->hasParam(1));
    EXPECT_FALSE(own.executor->hasParam(2));
    const std::unordered_map<long, std::shared_ptr<dc::CustomOpExecutor>> none;
    EXPECT_NE(refusal_of([&] { dc::getExecutor<MeanExecutor>(4, none); }).find("graph 4 is not registered"),
              std::string::npos);
  });
}

// ---- text

TEST(DeepCompileTextTest, UtilitiesSayWhatTheyHold) {
  const std::unordered_map<long, int> map = {{3, 1}};
  EXPECT_TRUE(dc::hasKey(map, 3));
  EXPECT_FALSE(dc::hasKey(map, 4));
  EXPECT_EQ(dc::to_string(2.5), "2.5");
  EXPECT_EQ(dc::join_as_str(std::vector<int>{1, 22, 3}), "1,22,3");
  EXPECT_EQ(dc::join_as_str(std::vector<int>{1, 22, 3}, " ", 4), "1 22...");
  EXPECT_EQ(dc::join_as_str(std::vector<int>{}), "");
  EXPECT_EQ(dc::join_as_str(std::vector<int>{1, 22, 3}, nullptr), "1223");
  EXPECT_EQ(dc::join_as_str(std::vector<std::string>{"gr\u00f6\u00dfe"}, ",", 3), "gr...");  // not half of a character
  std::vector<float> values = {1, 2, 0.5};
  EXPECT_EQ(dc::tensorPtrToString(values.data(), 3), "1,2,0.5");
  at::Tensor bytes = at::tensor({1, 200}, at::kByte);
  EXPECT_EQ(dc::tensorPtrToString(bytes.data_ptr(), 2, at::kByte), "1,200");
  const at::Tensor tensor = at::arange(30, at::kBFloat16).view({5, 6}).t();
  EXPECT_EQ(dc::tensorToString(tensor, 3), "BFloat16[6, 5] on cpu: 0,6,12,...");
  EXPECT_EQ(dc::tensorToString(at::ones({2}, at::kBool)), "Bool[2] on cpu: 1,1");
  EXPECT_EQ(dc::tensorToString({}), "undefined");
  EXPECT_EQ(dc::tensorDimToString(tensor), "[6, 5]");
  EXPECT_EQ(dc::productDim(tensor.sizes()), 30U);
  EXPECT_EQ(dc::productDim(std::vector<int>{}), 1U);
  EXPECT_EQ(dc::sizes_to_int_vector(tensor.sizes()), (std::vector<std::int64_t>{6, 5}));
}

TEST(DeepCompileTextTest, ValuesThatTorchMakesLazilyAndTheLargestInteger) {
  std::uint64_t largest = std::numeric_limits<std::uint64_t>::max();
  EXPECT_EQ(dc::tensorPtrToString(static_cast<void*>(&largest), 1, at::kUInt64), "18446744073709551615");
  EXPECT_EQ(dc::tensorToString(at::from_blob(&largest, {1}, at::kUInt64)), "UInt64[1] on cpu: 18446744073709551615");
  EXPECT_EQ(dc::tensorToString(at::complex(at::ones({1}), at::ones({1})).conj()), "ComplexFloat[1] on cpu: (1,-1)");
  EXPECT_EQ(dc::tensorToString(at::_neg_view(at::ones({2}))), "Float[2] on cpu: -1,-1");
  EXPECT_EQ(dc::tensorToString(at::_efficientzerotensor({2}, at::kFloat)), "Float[2] on cpu: 0,0");
}

TEST(DeepCompileTextTest, DtypesHaveNcclsNumbers) {
  const ncclDataType_t nccl_dtype = dc::get_nccl_data_type(at::kFloat16);
  EXPECT_EQ(static_cast<int>(nccl_dtype), 6);
  EXPECT_EQ(dc::get_nccl_data_type(at::kFloat), 7);
  EXPECT_EQ(dc::get_nccl_data_type(at::kBFloat16), 9);
  EXPECT_EQ(dc::get_nccl_data_type(at::kChar), 0);
  EXPECT_EQ(dc::get_nccl_data_type(at::kLong), 4);
  EXPECT_THROW(dc::get_nccl_data_type(at::kComplexFloat), Error);
}

}  // namespace

}  // namespace octavo
