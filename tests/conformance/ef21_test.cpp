// SPDX-License-Identifier: Apache-2.0
#include "octavo/rules/ef21.h"

#include "tests/conformance/conformance.h"

namespace octavo::conformance {

namespace {

void expect_ef21_equals_reference(std::uint64_t count, std::uint64_t offset, bool has_estimate) {
  SCOPED_TRACE(::testing::Message() << "count " << count << " offset " << offset << " estimate " << has_estimate);
  const auto gradient = any_values(count + offset, 3), before = finite_values(count + offset, 4);
  const auto others = finite_values(count + offset, 6);
  const float* const estimate = has_estimate ? before.data() + offset : nullptr;
  EncodeInput in{gradient.data()};
  in.gradient_weight = 0.3F;
  if (offset % 2 == 1) in.others = others.data();
  in.sum_weight = 0.5F;

  Guarded<float> want(count), have(count, offset);
  reference().subtract_estimate({}, in.from(offset), estimate, count, want.data());
  tested().subtract_estimate({}, in.from(offset), estimate, count, have.data());
  have.expect_same_bits(want);
  have.expect_untouched_around();

  const auto all_sent = offset == 0 ? any_values(count, 8) : finite_values(count + offset, 8);
  const float* const sent = all_sent.data() + offset;
  for (const bool remembers : {false, true}) {
    Guarded<float> next_wanted(count), next(count, offset);
    expect_same_results(count, offset, [&](const KernelTable& table, Store how, float* out, std::uint32_t* nonfinite) {
      auto& memory = &table == &reference() ? next_wanted : next;
      table.add_to_estimate({}, sent, estimate, count, 0.25F, how, out, remembers ? memory.data() : nullptr, nonfinite);
    });
    if (remembers && &reference() != &tested()) next.expect_same_bits(next_wanted);
    next.expect_untouched_around();
  }
}

TEST(Ef21, EqualsReference) {
  for (const bool has_estimate : {false, true}) {
    for (const std::uint64_t count : kCounts) {
      for (const std::uint64_t offset : kOffsets) expect_ef21_equals_reference(count, offset, has_estimate);
    }
    expect_ef21_equals_reference(kLargeCount, 0, has_estimate);
  }
}

TEST(Ef21, SenderAndReceiverKeepTheSameEstimate) {
  const std::vector<float> sent = {1, -2, 0.1F}, estimate = {0.5F, 1e8F, 0.2F};
  std::vector<float> values(3), of_sender(3), of_receiver(3);
  tested().add_to_estimate({}, sent.data(), estimate.data(), 3, 1.0F, Store::assign, nullptr, of_sender.data(),
                           nullptr);
  tested().add_to_estimate({}, sent.data(), estimate.data(), 3, 1.0F, Store::assign, values.data(), of_receiver.data(),
                           nullptr);
  EXPECT_EQ(of_sender, of_receiver);
  EXPECT_EQ(values, of_receiver) << "EF21 learns all that is sent";
  tested().add_to_estimate({}, sent.data(), estimate.data(), 3, 0.5F, Store::assign, values.data(), of_receiver.data(),
                           nullptr);
  EXPECT_EQ(of_receiver[0], 1.0F);
  EXPECT_EQ(values[0], 1.5F);
}

}  // namespace

}  // namespace octavo::conformance
