// SPDX-License-Identifier: Apache-2.0
// Compressors of ranks that share hosts.
#include "octavo/comm/schedule/hierarchical.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>

#include "octavo/comm/compressor.h"
#include "octavo/comm/ownership.h"
#include "octavo/comm/parameter_info.h"
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
using thread_ranks::BackendPtr;
using thread_ranks::LeavesAtEnd;
using thread_ranks::Meeting;
using thread_ranks::run_ranks;
using thread_ranks::ThreadBackend;

constexpr auto kHostsTimeout = std::chrono::milliseconds(20000);

struct HostsWorld {
  int hosts, ranks_per_host;
  int ranks() const { return hosts * ranks_per_host; }
};

/// Makes the compressor of one rank.
using MakeCompressor = std::function<std::unique_ptr<Compressor>(const char* plan)>;

/// Runs body(make, rank) on a thread for each rank.
void run_hosts(HostsWorld world, const std::function<void(const MakeCompressor& make, int rank)>& body) {
  std::vector<std::shared_ptr<Meeting>> hosts, between;
  for (int host = 0; host < world.hosts; ++host) hosts.push_back(std::make_shared<Meeting>(world.ranks_per_host));
  for (int place = 0; place < world.ranks_per_host; ++place) between.push_back(std::make_shared<Meeting>(world.hosts));
  run_ranks(world.ranks(), [&](const BackendPtr&, int rank) {
    const int host = rank / world.ranks_per_host, place = rank % world.ranks_per_host;
    const LeavesAtEnd leaves_host(*hosts[static_cast<std::size_t>(host)]);
    const LeavesAtEnd leaves_between(*between[static_cast<std::size_t>(place)]);
    const auto wire = [&](const std::shared_ptr<Meeting>& meeting, int number, int size) {
      return std::make_unique<Wire>(c10::make_intrusive<ThreadBackend>(meeting, number, size), kHostsTimeout);
    };
    const MakeCompressor make = [&](const char* plan) {
      const std::vector<ParameterInfo> parameters = {{"weight", kCount, false, /*rows=*/64}, {"norm", 64, true}};
      return std::make_unique<Compressor>(
          wire(between[static_cast<std::size_t>(place)], host, world.hosts), Plan::parse(plan), parameters,
          CompressorOptions{.host = wire(hosts[static_cast<std::size_t>(host)], place, world.ranks_per_host)});
    };
    body(make, rank);
  });
}

void hosts_step(Compressor& compressor, at::Tensor& bucket) {
  compressor.begin_step();
  compressor.reduce(bucket, kSlots);
}

at::Tensor host_mean(int host, int step) { return (bucket_of(2 * host, step) + bucket_of(2 * host + 1, step)) * 0.5F; }

/// Leaves out the tensors of parameters of which a rank owns nothing.
std::map<std::string, at::Tensor> without_empty(std::map<std::string, at::Tensor> tensors) {
  std::erase_if(tensors, [](const auto& named) { return named.second.numel() == 0; });
  return tensors;
}

/// Between hosts, each range that a rank of a host owns is a tensor of its own, averaged over as many ranks as hosts.
TEST(Hierarchical, AResultIsThatOfHostMeansBetweenTwoRanksForEachRange) {
  constexpr int kSteps = 4;
  for (const char* plan : {"int4+ef", "sign+ef", "int4+down:int8:stochastic+ef", "topk:0.1+dgc", "int8+ef21",
                           "randomk:0.1", "topk:0.1+ef:0.9+hits", "sign-vote", "dense", "lsh:0.45:int8"}) {
    std::vector<at::Tensor> expected(kSteps);
    std::vector<std::map<std::string, at::Tensor>> kept(4);  // indexed by rank
    for (at::Tensor& bucket : expected) bucket = at::empty({kCount + 64});
    for (int place = 0; place < 2; ++place) {
      const Range weight = owned_range(kCount, place, 2), norm = owned_range(64, place, 2);
      run_ranks(2, [&](const BackendPtr& backend, int host) {
        Compressor compressor{std::make_unique<Wire>(backend, kHostsTimeout),
                              Plan::parse(plan),
                              {{"weight", weight.count, false}, {"norm", norm.count, true}}};
        for (int at_step = 0; at_step < kSteps; ++at_step) {
          const auto own = [&](const at::Tensor& bucket) {
            const auto part = [&](std::int64_t start, Range range) {
              return bucket.narrow(0, start + static_cast<std::int64_t>(range.first),
                                   static_cast<std::int64_t>(range.count));
            };
            return std::pair(part(0, weight), part(kCount, norm));
          };
          const at::Tensor mean = host_mean(host, at_step);
          at::Tensor bucket = at::cat({own(mean).first, own(mean).second});
          compressor.begin_step();
          compressor.reduce(bucket, {{0, 0}, {1, weight.count}});
          if (host != 0) continue;
          const auto [weights, norms] = own(expected[static_cast<std::size_t>(at_step)]);
          weights.copy_(bucket.narrow(0, 0, weights.numel()));
          norms.copy_(bucket.narrow(0, weights.numel(), norms.numel()));
        }
        kept[static_cast<std::size_t>(2 * host + place)] = without_empty(copy(compressor.state().tensors));
      });
    }
    run_hosts({2, 2}, [&](const MakeCompressor& make, int rank) {
      const auto compressor = make(plan);
      for (int at_step = 0; at_step < kSteps; ++at_step) {
        at::Tensor bucket = bucket_of(rank, at_step);
        hosts_step(*compressor, bucket);
        EXPECT_TRUE(at::equal(bucket, expected[static_cast<std::size_t>(at_step)])) << plan << ", step " << at_step;
      }
      expect_equal(without_empty(compressor->state().tensors), kept[static_cast<std::size_t>(rank)]);
    });
  }
}

TEST(Hierarchical, AnyNumberOfHostsAndRanksHasTheMeanAndTheSameBits) {
  for (const HostsWorld world : std::vector<HostsWorld>{{1, 1}, {1, 3}, {3, 1}, {2, 3}, {3, 2}}) {
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      at::Tensor mean = at::zeros({kCount + 64});
      for (int rank = 0; rank < world.ranks(); ++rank) mean += bucket_of(rank, 0).to(dtype).to(at::kFloat);
      mean /= world.ranks();
      std::vector<at::Tensor> results(static_cast<std::size_t>(world.ranks()));
      run_hosts(world, [&](const MakeCompressor& make, int rank) {
        at::Tensor bucket = bucket_of(rank, 0).to(dtype);
        const auto compressor = make("int8+ef");
        hosts_step(*compressor, bucket);
        results[static_cast<std::size_t>(rank)] = bucket.to(at::kFloat);
        EXPECT_GT(compressor->gradient_powers()[0], 0.0F);
      });
      for (const at::Tensor& result : results) {
        EXPECT_TRUE(at::equal(result, results[0])) << "replicas differ";
        EXPECT_LT((result - mean).abs().max().item<double>(), 0.02);
      }
    }
  }
}

TEST(Hierarchical, PowersAreTheMeanOverAllRanks) {
  run_hosts({2, 2}, [&](const MakeCompressor& make, int rank) {
    const auto compressor = make("sign+ef");
    at::Tensor bucket = at::full({kCount + 64}, static_cast<float>(rank));
    hosts_step(*compressor, bucket);
    EXPECT_EQ(compressor->gradient_powers(), (std::vector{3.5F, 3.5F}));  // (0 + 1 + 4 + 9) / 4
  });
}

TEST(Hierarchical, ANaNAnywhereIsToldToAllAndLeavesNoTrace) {
  for (int bad_rank = 0; bad_rank < 4; ++bad_rank) {
    for (const std::int64_t place :
         // one place in the range of each rank of a host, and an exempt one
         {std::int64_t{3}, kCount / 2 + 7, kCount + 5}) {
      run_hosts({2, 2}, [&](const MakeCompressor& make, int rank) {
        const auto compressor = make("sign+ef");
        at::Tensor bucket = bucket_of(rank, 0);
        hosts_step(*compressor, bucket);
        const auto before = copy(compressor->state().tensors);
        at::Tensor bad = bucket_of(rank, 1);
        if (rank == bad_rank) bad[place].fill_(std::numeric_limits<float>::quiet_NaN());
        hosts_step(*compressor, bad);
        EXPECT_FALSE(std::isfinite(bad[place].item<float>()));
        expect_equal(compressor->state().tensors, before);
        EXPECT_EQ(compressor->stats().nonfinite_steps, 1U);
      });
    }
  }
}

TEST(Hierarchical, MomentaComeInBetweenHosts) {
  run_hosts({2, 2}, [&](const MakeCompressor& make, int rank) {
    const auto compressor = make("int8+ef");
    const at::Tensor momentum = at::arange(kCount, at::kFloat) / kCount;
    const at::Tensor preconditioner = at::full({kCount}, 10.0F);
    compressor->set_momentum({{"weight", {momentum, preconditioner}}}, 0.9);
    compressor->set_gradient_scale(4);
    at::Tensor bucket = at::full({kCount + 64}, 4.0F * static_cast<float>(rank));
    hosts_step(*compressor, bucket);
    const at::Tensor wanted = 4 * (0.9 * momentum + 0.1 * 10 * 1.5);
    EXPECT_LT((bucket.narrow(0, 0, kCount) - wanted).abs().max().item<double>(), 0.1);
    at::Tensor nothing = at::zeros({kCount + 64});  // zeros on all ranks: the momentum decays
    hosts_step(*compressor, nothing);
    EXPECT_LT((nothing.narrow(0, 0, kCount) - 4 * 0.9F * momentum).abs().max().item<double>(), 1e-5);
    EXPECT_EQ(compressor->gradient_powers()[0], 0.0F);
  });
}

TEST(Hierarchical, BytesInsideHostsAndBetweenThemAreCountedApart) {
  run_hosts({2, 2}, [&](const MakeCompressor& make, int rank) {
    for (const bool is_bf16 : {false, true}) {
      const auto compressor = make("int8");
      at::Tensor bucket = bucket_of(rank, 0).to(is_bf16 ? at::kBFloat16 : at::kFloat);
      hosts_step(*compressor, bucket);
      // half of the weight is this rank's range; between hosts half of that range is sent each way; one place of each
      // host has the exempt elements
      const std::uint64_t range = kCount / 2, headers = 2 * 16 + 2 * 4, width = is_bf16 ? 2 : 4;
      const std::uint64_t exempt = rank % 2 == 0 ? 64 * 4 : 0;
      const CompressorStats stats = compressor->stats();
      EXPECT_EQ(stats.wire_bytes, range + range / 256 * 4 + exempt + headers);
      EXPECT_EQ(stats.host_bytes, 2 * range * width + 64 * width + headers);
      EXPECT_EQ(stats.dense_bytes, 2 * (kCount + 64) * width * 3 / 4);
      EXPECT_EQ(compressor->parameter_stats()[0].wire_bytes, range + range / 256 * 4);
    }
  });
}

TEST(Hierarchical, RanksOfHostsWithAnotherPlanAreTold) {
  run_hosts({2, 2}, [&](const MakeCompressor& make, int rank) {
    const auto compressor = make(rank < 2 ? "ternary:64" : "sign2:64");
    at::Tensor bucket = bucket_of(rank, 0);
    try {
      hosts_step(*compressor, bucket);
      ADD_FAILURE() << "rank " << rank << " averaged what does not belong together";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::communication) << error.what();
    }
  });
}

TEST(Hierarchical, StatesGoOnAndAreRedistributedOverOtherHosts) {
  std::vector<CompressorState> saved(4);
  run_hosts({2, 2}, [&](const MakeCompressor& make, int rank) {
    const auto original = make("sign+ef"), resumed = make("sign+ef");
    at::Tensor first = bucket_of(rank, 0);
    hosts_step(*original, first);
    saved[static_cast<std::size_t>(rank)] = copy(original->state());
    resumed->load_state(saved[static_cast<std::size_t>(rank)]);
    at::Tensor a = bucket_of(rank, 1), b = bucket_of(rank, 1);
    hosts_step(*original, a);
    hosts_step(*resumed, b);
    EXPECT_TRUE(at::equal(a, b));
  });
  run_hosts({3, 2}, [&](const MakeCompressor& make, int rank) {
    const auto compressor = make("sign+ef");
    const auto place = static_cast<std::size_t>(rank % 2);
    compressor->load_world({saved[place], saved[2 + place]});
    const auto loaded = compressor->state().tensors;
    const Range own = owned_range(kCount / 2, rank / 2, 3);
    EXPECT_EQ(loaded.at("owner/weight").numel(), static_cast<std::int64_t>(own.count));
    EXPECT_EQ(loaded.at("worker/weight").numel(), static_cast<std::int64_t>(kCount / 2 - own.count));
  });
}

TEST(Hierarchical, WhatDoesNotFitIsRefused) {
  run_hosts({2, 2}, [&](const MakeCompressor& make, int) {
    for (const char* plan : {"powersgd:4", "sketch:0.1+ef", "auto", "topk:0.01+dgc+clip:1", "int4;weight=powersgd:4"}) {
      try {
        make(plan);
        ADD_FAILURE() << plan << " was accepted";
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
        EXPECT_NE(std::string(error.what()).find("ranks_per_host"), std::string::npos) << error.what();
      }
    }
    const auto compressor = make("sign-vote");
    EXPECT_THROW(compressor->set_plan(Plan::parse("auto")), Error);
    EXPECT_THROW(compressor->keep_own_momenta({"weight"}, {0.9, 0.99}), Error);
    compressor->begin_step();
    const at::Tensor sparse = at::sparse_coo_tensor(at::zeros({1, 1}, at::kLong), at::ones({1}), {8});
    EXPECT_THROW(compressor->reduce(sparse, {}), Error);
  });
}

}  // namespace

}  // namespace octavo
