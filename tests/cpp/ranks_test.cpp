// SPDX-License-Identifier: Apache-2.0
#include "tests/cpp/ranks.h"

#include <gtest/gtest.h>

#include <atomic>
#include <stdexcept>

/// What the tests' own ranks do where one of them fails: without it, a failure would be a test that never ends.
namespace octavo {

namespace {

using thread_ranks::BackendPtr;
using thread_ranks::run_ranks;

void sum_over_ranks(const BackendPtr& backend) {
  std::vector<at::Tensor> tensors = {at::ones({4})};
  backend->allreduce(tensors, {});
  EXPECT_TRUE(at::equal(tensors[0], at::full({4}, static_cast<float>(backend->getSize()))));
}

TEST(ThreadRanks, ARankThatThrowsEndsThoseThatWaitForIt) {
  for (const int world : {2, 3}) {
    for (const int sums_before : {0, 2}) {
      std::atomic<int> ended = 0;
      try {
        run_ranks(world, [&](const BackendPtr& backend, int rank) {
          for (int i = 0; i < sums_before; ++i) sum_over_ranks(backend);
          if (rank == 1) throw std::runtime_error("the reason");
          try {
            sum_over_ranks(backend);
          } catch (const c10::Error& error) {
            EXPECT_NE(std::string(error.what()).find("rank 1 has left"), std::string::npos) << error.what();
            ++ended;
            throw;
          }
        });
        ADD_FAILURE() << "no error reached the test";
      } catch (const std::runtime_error& error) {
        EXPECT_STREQ(error.what(), "the reason");
      }
      EXPECT_EQ(ended, world - 1);
    }
  }
}

/// As after an ASSERT that failed.
TEST(ThreadRanks, ARankThatReturnsTooSoonEndsThoseThatWaitForIt) {
  run_ranks(2, [](const BackendPtr& backend, int rank) {
    sum_over_ranks(backend);
    if (rank == 1) return;
    EXPECT_THROW(sum_over_ranks(backend), c10::Error);
  });
}

}  // namespace

}  // namespace octavo
