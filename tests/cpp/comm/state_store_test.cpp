// SPDX-License-Identifier: Apache-2.0
#include "octavo/comm/state/state_store.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "octavo/kernels/error.h"

namespace octavo {

namespace {

constexpr Role kSent = {"sent", Extent::sent, at::kBFloat16}, kOwned = {"owned", Extent::owned, at::kBFloat16};
const std::vector<ParameterInfo> kParameters = {{"a", 200, false}, {"b", 100, false}};

StateStore store(int rank, int world_size) { return {kParameters, {kSent, kOwned}, rank, world_size}; }

void write(StateStore& state, std::size_t parameter, const Role& role, std::uint64_t count, std::uint16_t bits) {
  auto* values = state.at(parameter, role).next<std::uint16_t>(count, c10::kCPU);
  std::fill_n(values, count, bits);
}

std::uint16_t first_bits(StateStore& state, std::size_t parameter, const Role& role) {
  const auto* values = state.at(parameter, role).now<std::uint16_t>(c10::kCPU);
  return values ? values[0] : 0;
}

TEST(StateStore, AStepIsCommittedParameterByParameterOrNotAtAll) {
  StateStore state = store(0, 2);
  write(state, 0, kSent, 72, 1);
  write(state, 1, kSent, 36, 2);
  state.set_sent(0, true);
  state.end_step(/*commit=*/true);
  EXPECT_EQ(first_bits(state, 0, kSent), 1);
  EXPECT_EQ(first_bits(state, 1, kSent), 0) << "it was not to be kept";
  write(state, 0, kSent, 72, 3);
  state.set_sent(0, true);
  state.end_step(/*commit=*/false);
  EXPECT_EQ(first_bits(state, 0, kSent), 1);
  state.end_step(/*commit=*/true);
  EXPECT_EQ(first_bits(state, 0, kSent), 1) << "what was rolled back came again";
  state.load({});
  EXPECT_TRUE(state.save().empty());
}

/// A rank's contribution counts for the average divided by the number of ranks; a sum that an owner keeps is an average
/// already.
TEST(StateStore, WhatIsOwedToAnAverageStaysWhateverTheNumberOfRanks) {
  constexpr Role kOwn = {"own", Extent::own_contribution, at::kFloat};
  constexpr Role kSums = {"sums", Extent::owned, at::kFloat};
  std::vector<std::map<std::string, at::Tensor>> four;
  for (const std::int64_t owned : {64, 64, 64, 8}) {
    four.push_back({{"own/a", at::ones({owned})}, {"sums/a", at::ones({owned})}});
  }
  for (const int world_size : {2, 4, 8}) {
    double own = 0, sums = 0;
    for (int rank = 0; rank < world_size; ++rank) {
      StateStore state{kParameters, {kOwn, kSums}, rank, world_size};
      state.load_world(four);
      for (const auto& [key, values] : state.save()) {
        (key == "own/a" ? own : sums) += values.sum().item<double>() / (key == "own/a" ? world_size : 1);
      }
    }
    EXPECT_NEAR(own, 200.0 / 4, 1e-3) << world_size;
    EXPECT_NEAR(sums, 200.0, 1e-3) << world_size;
  }
}

TEST(StateStore, ARoleMayLiveWhereNothingWasSent) {
  constexpr Role kWhole = {"whole", Extent::whole, at::kFloat, /*is_kept_unsent=*/true};
  StateStore state{kParameters, {kSent, kWhole}, 0, 2};
  write(state, 0, kSent, 72, 1);
  state.at(0, kWhole).next<float>(200, c10::kCPU)[0] = 5;
  state.set_sent(0, false);
  state.end_step(/*commit=*/true);
  EXPECT_EQ(first_bits(state, 0, kSent), 0);
  EXPECT_EQ(state.at(0, kWhole).now<float>(c10::kCPU)[0], 5);

  std::vector<std::map<std::string, at::Tensor>> world = {{{"whole/a", at::full({200}, 3.0F)}}, {}, {}};
  world[2]["whole/a"] = at::full({200}, 6.0F);
  state.load_world(world);
  EXPECT_TRUE(at::equal(state.save().at("whole/a"), at::full({200}, 3.0F))) << "the mean over all three";
}

TEST(StateStore, IsSavedAndLoaded) {
  StateStore state = store(0, 2);
  write(state, 0, kOwned, 128, 5);
  state.set_sent(0, true);
  state.end_step(/*commit=*/true);
  StateStore other = store(0, 2);
  other.load(state.save());
  EXPECT_EQ(first_bits(other, 0, kOwned), 5);
  EXPECT_EQ(other.save().size(), 1U);
}

TEST(StateStore, WhatDoesNotFitIsRefusedAndChangesNothing) {
  StateStore state = store(0, 2);
  const auto options = at::TensorOptions(at::kBFloat16);
  state.load({{"owned/a", at::ones({128}, options)}});
  const std::map<std::string, at::Tensor> wrong[] = {{{"owned/a", at::ones({127}, options)}},
                                                     {{"owned/a", at::ones({128}, at::kFloat)}},
                                                     {{"owned/a", at::Tensor()}},
                                                     {{"owned/a", at::ones({128}, options).to_sparse()}},
                                                     {{"owned/a", at::ones({128}, options.device(at::kMeta))}},
                                                     {{"owned/none", at::ones({128}, options)}},
                                                     {{"other/a", at::ones({128}, options)}}};
  for (const auto& tensors : wrong) {
    try {
      state.load(tensors);
      ADD_FAILURE() << tensors.begin()->first << " was loaded";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::invalid_argument) << error.what();
    }
    EXPECT_THROW(state.load_world({tensors, tensors}), Error) << tensors.begin()->first;
    EXPECT_EQ(state.save().size(), 1U);
  }
}

TEST(StateStore, IsRedistributedOverAnotherWorld) {
  std::vector<std::map<std::string, at::Tensor>> world;
  for (int rank = 0; rank < 2; ++rank) {
    const auto owned = static_cast<std::int64_t>(owned_range(200, rank, 2).count);
    world.push_back({{"owned/a", at::full({owned}, rank + 1, at::kBFloat16)}});
  }
  std::vector<at::Tensor> parts;
  for (int rank = 0; rank < 3; ++rank) {
    StateStore state = store(rank, 3);
    state.load_world(world);
    parts.push_back(state.save()["owned/a"]);
  }
  const at::Tensor all = at::cat(parts);
  ASSERT_EQ(all.numel(), 200);
  EXPECT_TRUE(at::equal(all.narrow(0, 0, 128), at::full({128}, 1, at::kBFloat16)));
  EXPECT_TRUE(at::equal(all.narrow(0, 128, 72), at::full({72}, 2, at::kBFloat16)));
}

/// Both ends of an estimate must have the same values: where one rank's part is lost, both begin anew.
TEST(StateStore, EstimatesThatAreNotWholeAreLeftOut) {
  constexpr Role kTheirs = {"received", Extent::received_estimates, at::kFloat},
                 kOurs = {"estimate", Extent::sent_estimate, at::kFloat};
  std::vector<std::map<std::string, at::Tensor>> world(3);
  for (int rank = 0; rank < 3; ++rank) {  // rank 2 owns nothing
    const OthersRanges sent = others_ranges(200, rank, 3);
    auto& of_rank = world[static_cast<std::size_t>(rank)];
    of_rank["estimate/a"] = at::full({static_cast<std::int64_t>(sent.count)}, 2.0F);
    if (sent.own.count > 0) of_rank["received/a"] = at::full({2 * static_cast<std::int64_t>(sent.own.count)}, 2.0F);
    of_rank["owned/a"] = at::full({static_cast<std::int64_t>(sent.own.count)}, 1, at::kBFloat16);
  }
  StateStore state{kParameters, {kTheirs, kOurs, kOwned}, 0, 2};
  state.load_world(world);
  EXPECT_EQ(state.save().size(), 3U);
  EXPECT_TRUE(at::equal(state.save().at("estimate/a"), at::full({72}, 2.0F)));
  EXPECT_TRUE(at::equal(state.save().at("received/a"), at::full({128}, 2.0F)));
  for (const std::size_t lost : {2U, 1U, 0U}) {
    auto others = world;
    others[lost].clear();
    state.load_world(others);
    EXPECT_EQ(state.save().size(), 1U) << "rank " << lost;
    EXPECT_EQ(state.save().count("owned/a"), 1U);
  }
}

}  // namespace

}  // namespace octavo
