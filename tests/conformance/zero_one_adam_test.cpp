// SPDX-License-Identifier: Apache-2.0
#include "octavo/rules/zero_one_adam.h"

#include "tests/conformance/conformance.h"

namespace octavo::conformance {

namespace {

constexpr rules::ZeroOneStep kStep = {0.9F, 0.1F, 1e-3F};
constexpr float kZeroOneDecay = 0.999F, kZeroOneShare = 250.0F;

struct ZeroOneValues {
  Guarded<float> gradient, preconditioner, anchor, parameter, momentum, update;
  ZeroOneValues(std::uint64_t count, std::uint64_t offset)
      : gradient(count, offset),
        preconditioner(count, offset),
        anchor(count, offset),
        parameter(count, offset),
        momentum(count, offset),
        update(count, offset) {
    put_finite(all());
  }
  Arrays all() { return {&gradient, &preconditioner, &anchor, &parameter, &momentum, &update}; }
  void send(const KernelTable& table) {
    table.zero_one_send({}, kStep, gradient.count(), gradient.data(), preconditioner.data(), momentum.data(),
                        update.data());
  }
  void step(const KernelTable& table) {
    table.zero_one_local({}, kStep, gradient.count(), gradient.data(), preconditioner.data(), anchor.data(),
                         parameter.data(), momentum.data(), update.data());
  }
  void sync(const KernelTable& table, Guarded<float>& base) {
    table.zero_one_sync({}, kZeroOneDecay, kZeroOneShare, gradient.count(), base.data(), parameter.data(),
                        momentum.data(), update.data());
  }
};

void expect_zero_one_equals_reference(std::uint64_t count, std::uint64_t offset) {
  SCOPED_TRACE(testing::Message() << "count " << count << " offset " << offset);
  ZeroOneValues expected(count, 0), got(count, offset);
  for (auto [table, values] : {std::pair(&reference(), &expected), std::pair(&tested(), &got)}) {
    put_specials(values->all());
    values->step(*table);
    values->send(*table);
  }
  expect_same_arrays(got.all(), expected.all());
  for (auto [table, values] : {std::pair(&reference(), &expected), std::pair(&tested(), &got)}) {
    values->sync(*table, values->anchor);
    values->sync(*table, values->parameter);  // syncs without an anchor
  }
  expect_same_arrays(got.all(), expected.all());
}

TEST(ZeroOneAdam, EqualsReference) {
  for (const std::uint64_t count : kCounts) {
    for (const std::uint64_t offset : kOffsets) expect_zero_one_equals_reference(count, offset);
  }
  expect_zero_one_equals_reference(kLargeCount, 0);
}

/// Where one rank alone sends, that step and the one after it are equal to a local step of that rank.
TEST(ZeroOneAdam, WhatOneRankSendsIsItsLocalStep) {
  constexpr std::uint64_t kCount = 1000;
  ZeroOneValues local(kCount, 0), sent(kCount, 0);
  local.step(tested());
  sent.send(tested());
  sent.gradient.expect_same_bits(local.update);
  std::copy_n(sent.gradient.data(), kCount, sent.update.data());
  tested().zero_one_sync({}, 1.0F, kZeroOneShare, kCount, sent.anchor.data(), sent.parameter.data(),
                         sent.momentum.data(), sent.update.data());
  sent.parameter.expect_same_bits(local.parameter);
  sent.anchor.expect_same_bits(local.parameter);
  for (std::uint64_t i = 0; i < kCount; ++i) {
    EXPECT_EQ(sent.update.data()[i], 0.0F);
    EXPECT_EQ(sent.momentum.data()[i], kZeroOneShare * local.update.data()[i]);
  }
}

}  // namespace

}  // namespace octavo::conformance
