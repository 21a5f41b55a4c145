// SPDX-License-Identifier: Apache-2.0
// A Compressor under the plan `auto`. auto_choice_test and auto_plan_test test which figures lead to which choice.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <thread>

#include "octavo/comm/compressor.h"
#include "octavo/kernels/error.h"
#include "tests/cpp/compressor_steps.h"
#include "tests/cpp/ranks.h"

namespace octavo {

namespace {

using compressor_steps::bucket_of;
using compressor_steps::copy;
using compressor_steps::expect_equal;
using compressor_steps::kCount;
using compressor_steps::kSlots;
using compressor_steps::make;
using compressor_steps::owed;
using thread_ranks::BackendPtr;
using thread_ranks::run_ranks;

/// A network that takes a given number of seconds per byte for each of the two kinds of transfers.
class SlowBackend : public c10d::Backend {
 public:
  SlowBackend(BackendPtr inner, double all_to_all_s, double all_reduce_s)
      : Backend(inner->getRank(), inner->getSize()),
        inner_(std::move(inner)),
        all_to_all_s_(all_to_all_s),
        all_reduce_s_(all_reduce_s) {}

  const std::string getBackendName() const override { return "slow"; }

  c10::intrusive_ptr<c10d::Work> alltoall_base(at::Tensor& output, at::Tensor& input,
                                               std::vector<std::int64_t>& output_splits,
                                               std::vector<std::int64_t>& input_splits,
                                               const c10d::AllToAllOptions& options) override {
    travel(all_to_all_s_ * static_cast<double>(input.nbytes()));
    return inner_->alltoall_base(output, input, output_splits, input_splits, options);
  }
  c10::intrusive_ptr<c10d::Work> allreduce(std::vector<at::Tensor>& tensors,
                                           const c10d::AllreduceOptions& options) override {
    travel(all_reduce_s_ * static_cast<double>(tensors.at(0).nbytes()));
    return inner_->allreduce(tensors, options);
  }

 private:
  static void travel(double seconds) { std::this_thread::sleep_for(std::chrono::duration<double>(seconds)); }

  BackendPtr inner_;
  double all_to_all_s_, all_reduce_s_;
};

TEST(Compressor, AutoChoosesByWhatTheNetworkTakes) {
  // Seconds per byte: a dense bucket takes 64 ms, int8+ef 16 ms, int4+ef 9 ms. On a busy machine each takes longer, so
  // this test does not check which of the last two is chosen (auto_choice_test does).
  constexpr double kFast = 0, kSlow = 4e-6;
  using Names = std::set<std::string>;
  for (const auto& [all_to_all_s, all_reduce_s, expected] :
       {std::tuple(kSlow, kSlow, Names{"int8+ef", "int4+ef"}), std::tuple(kSlow, kFast, Names{"dense"})}) {
    run_ranks(2, [&](const BackendPtr& backend, int rank) {
      Compressor compressor = make(c10::make_intrusive<SlowBackend>(backend, all_to_all_s, all_reduce_s), "auto");
      for (int step = 0; step < 100 && !compressor.auto_stats()->report.is_settled; ++step) {
        compressor.begin_step();
        compressor.reduce(bucket_of(rank, step), kSlots);
      }
      EXPECT_TRUE(expected.contains(compressor.parameter_stats()[0].plan)) << compressor.parameter_stats()[0].plan;
      EXPECT_EQ(compressor.parameter_stats()[1].plan, "dense");  // the parameter is exempt
      const AutoStats stats = *compressor.auto_stats();
      EXPECT_TRUE(expected.contains(stats.plans.at(stats.report.buckets.at(0).plan)));
      EXPECT_EQ(stats.parameters.at(stats.report.buckets.at(0).parameters.at(0)), "weight");
    });
  }
}

/// Uses every plan in turn, whichever of them this machine's clock prefers: nothing is lost, and the ranks' results are
/// equal bit by bit.
TEST(Compressor, NothingIsLostWhileAutoChangesPlans) {
  constexpr int kSteps = 70;
  std::vector<at::Tensor> sums(2);
  std::vector<std::map<std::string, at::Tensor>> left(2);
  run_ranks(2, [&](const BackendPtr& backend, int rank) {
    Compressor compressor = make(backend, "auto:sign");
    at::Tensor& sum = sums[static_cast<std::size_t>(rank)];
    sum = at::zeros({kCount + 64}, at::kDouble);
    for (int step = 0; step < kSteps; ++step) {
      compressor.begin_step();
      at::Tensor bucket = bucket_of(rank, step);
      compressor.reduce(bucket, kSlots);
      sum += bucket;
    }
    EXPECT_GT(compressor.auto_stats()->report.measured_steps, 9U);
    left[static_cast<std::size_t>(rank)] = copy(compressor.state().tensors);
  });
  EXPECT_TRUE(at::equal(sums[0], sums[1]));
  at::Tensor expected = at::zeros({kCount + 64}, at::kDouble);
  for (int step = 0; step < kSteps; ++step) expected += (bucket_of(0, step) + bucket_of(1, step)) / 2;
  at::Tensor difference = (expected - sums[0]).narrow(0, 0, kCount);
  if (left[0].contains("worker/weight")) difference -= owed(left, kCount);
  EXPECT_LT(difference.abs().max().item<double>(), 0.1);  // both the values and the residuals are rounded to bf16
  EXPECT_LT((expected - sums[0]).narrow(0, kCount, 64).abs().max().item<double>(), 1e-4);
}

TEST(Compressor, AutoSendsWhatIsOwedBeforeItIsDense) {
  std::vector<std::map<std::string, at::Tensor>> before(2);
  std::vector<at::Tensor> results(2);
  run_ranks(2, [&](const BackendPtr& backend, int rank) {
    Compressor compressor = make(backend, "sign+ef");
    compressor.begin_step();
    compressor.reduce(bucket_of(rank, 0), kSlots);
    auto& owed_before = before[static_cast<std::size_t>(rank)];
    owed_before = copy(compressor.state().tensors);
    compressor.set_plan(Plan::parse("auto"));

    compressor.begin_step();  // this step is rolled back, so the residuals are still owed
    at::Tensor bad = bucket_of(rank, 1);
    if (rank == 1) bad[5].fill_(INFINITY);
    compressor.reduce(bad, kSlots);
    expect_equal(compressor.state().tensors, owed_before);
    compressor.begin_step();
    compressor.reduce(bucket_of(rank, 1), kSlots);
    compressor.abandon_step();
    expect_equal(compressor.state().tensors, owed_before);

    compressor.begin_step();
    at::Tensor& result = results[static_cast<std::size_t>(rank)];
    result = bucket_of(rank, 2);
    compressor.reduce(result, kSlots);
    EXPECT_TRUE(compressor.state().tensors.empty());
    compressor.begin_step();
    at::Tensor next = bucket_of(rank, 3);  // this step may send bf16
    compressor.reduce(next, kSlots);
    EXPECT_TRUE(at::allclose(next, (bucket_of(0, 3) + bucket_of(1, 3)) / 2, 0.01, 0.01));
  });
  const at::Tensor average = (bucket_of(0, 2) + bucket_of(1, 2)) / 2;
  EXPECT_TRUE(at::equal(results[0], results[1]));
  EXPECT_TRUE(at::allclose((results[0] - average).narrow(0, 0, kCount), owed(before, kCount), 1e-5, 1e-6));
  EXPECT_TRUE(at::equal(results[0].narrow(0, kCount, 64), average.narrow(0, kCount, 64)));
}

TEST(Compressor, AutoHasRulesAndNeedsGradientsAndOtherRanks) {
  run_ranks(2, [&](const BackendPtr& backend, int rank) {
    Compressor compressor = make(backend, "auto;weight=int8+ef");
    for (int step = 0; step < 4; ++step) {
      compressor.begin_step();
      compressor.reduce(bucket_of(rank, step), kSlots);
      EXPECT_EQ(compressor.parameter_stats()[0].plan, "int8+ef");
    }
    const std::map<std::string, SentMomenta::Momentum> momenta = {
        {"weight", {at::zeros({kCount}), at::ones({kCount})}}};
    EXPECT_THROW(compressor.set_momentum(momenta, 0.9), Error);
    compressor.set_plan(Plan::parse("int4+ef"));
    EXPECT_FALSE(compressor.auto_stats());
    compressor.set_momentum(momenta, 0.9);
    EXPECT_THROW(compressor.set_plan(Plan::parse("auto")), Error);
    EXPECT_EQ(compressor.plan().text(), "int4+ef");
  });
  run_ranks(1, [&](const BackendPtr& backend, int) {
    Compressor compressor = make(backend, "auto");
    compressor.begin_step();
    compressor.reduce(bucket_of(0, 0), kSlots);
    EXPECT_FALSE(compressor.auto_stats());
  });
}

}  // namespace

}  // namespace octavo
