// SPDX-License-Identifier: Apache-2.0
#include "octavo/comm/schedule/sparse_sum.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "octavo/comm/wire.h"
#include "octavo/kernels/error.h"
#include "tests/cpp/ranks.h"

namespace octavo {

namespace {

using thread_ranks::BackendPtr;
using thread_ranks::run_ranks;

constexpr std::chrono::seconds kTimeout{10};
constexpr std::uint64_t kDigest = 7;

/// Returns rows 0, 1, …, `rank` - 1 and twice row 5, of 8 rows. They differ by rank; rank 0 has only row 5.
at::Tensor rows_of(int rank, at::ScalarType dtype) {
  const at::Tensor rows = at::cat({at::arange(rank), at::full({2}, 5)}).to(at::kLong);
  const at::Tensor values = at::arange(rows.numel() * 3).view({-1, 3}).add(rank).to(dtype);
  return at::sparse_coo_tensor(rows.view({1, -1}), values, {8, 3});
}

TEST(SparseSum, IsTheSumOfWhatRanksHave) {
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble, at::kBFloat16}) {
    run_ranks(3, [&](const BackendPtr& backend, int rank) {
      Wire wire(backend, kTimeout);
      const at::Tensor sum = sum_of_sparse(wire, rows_of(rank, dtype), kDigest);
      EXPECT_TRUE(sum.is_coalesced());
      EXPECT_EQ(sum.scalar_type(), dtype);
      EXPECT_EQ(sum._nnz(), 3);  // rows 0, 1 and 5
      const at::Tensor expected =
          rows_of(0, dtype).to_dense() + rows_of(1, dtype).to_dense() + rows_of(2, dtype).to_dense();
      EXPECT_TRUE(at::equal(sum.to_dense(), expected));
      const int rows = rank + 1;
      EXPECT_EQ(wire.sent_bytes(), 2U * (32 + 16 + rows * (8 + 3 * elementSize(dtype))));
    });
  }
}

TEST(SparseSum, RanksMayHaveNothing) {
  run_ranks(2, [&](const BackendPtr& backend, int rank) {
    Wire wire(backend, kTimeout);
    const at::Tensor none = at::sparse_coo_tensor(at::empty({1, 0}, at::kLong), at::empty({0, 3}), {8, 3});
    EXPECT_EQ(sum_of_sparse(wire, none, kDigest)._nnz(), 0);
    const at::Tensor sum = sum_of_sparse(wire, rank == 0 ? none : rows_of(1, at::kFloat), kDigest);
    EXPECT_TRUE(at::equal(sum.to_dense(), rows_of(1, at::kFloat).to_dense()));
  });
}

/// Checks the error on each of three ranks where rank 1 has another tensor or digest: the sentence must say `words`.
void expect_refused(const at::Tensor& other, std::uint64_t digest, const std::string& words) {
  run_ranks(3, [&](const BackendPtr& backend, int rank) {
    Wire wire(backend, kTimeout);
    try {
      (void)sum_of_sparse(wire, rank == 1 ? other : rows_of(0, at::kFloat), rank == 1 ? digest : kDigest);
      ADD_FAILURE() << "rank " << rank << " has added them";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::communication);
      EXPECT_NE(std::string(error.what()).find(words), std::string::npos) << error.what();
    }
  });
}

TEST(SparseSum, AnotherDtypeOrSizeIsAnErrorOnAllRanks) {
  for (const at::Tensor& other : {rows_of(0, at::kBFloat16), at::sparse_coo_tensor({9, 3}, at::kFloat)}) {
    expect_refused(other, kDigest, "all ranks must have the same model");
  }
}

TEST(SparseSum, AnotherStepIsAnErrorOnAllRanks) {
  expect_refused(rows_of(0, at::kFloat), kDigest + 1, "a bucket of another step, plan or model");
}

/// Torch accepts such indices, and an optimizer would write out of range.
TEST(SparseSum, IndicesOutOfRangeAreAnErrorOnAllRanks) {
  for (const std::int64_t row : {std::int64_t{8}, std::int64_t{-1}, std::int64_t{1} << 40}) {
    const at::Tensor rows = at::full({1, 1}, row, at::kLong);
    const at::Tensor forged = at::sparse_coo_tensor(rows, at::ones({1, 3}), {8, 3}, {}, /*is_coalesced=*/true);
    expect_refused(forged, kDigest, "rank 1 has a sparse gradient with an index that is out of the range");
  }
}

}  // namespace

}  // namespace octavo
