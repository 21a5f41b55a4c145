// SPDX-License-Identifier: Apache-2.0
// Memory that the ranks of a host share: who finds it, where things are stored, and what a transfer leaves behind. The
// Python tests have processes as ranks.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <cstring>
#include <string>
#include <sys/time.h>
#include <thread>

#include "octavo/comm/compressor.h"
#include "octavo/comm/shared/host_ranks.h"
#include "octavo/comm/shared/memory_file.h"
#include "octavo/comm/shared/shared_backend.h"
#include "octavo/comm/shared/shared_blocks.h"
#include "octavo/comm/shared/symmetric_memory.h"
#include "octavo/comm/wire.h"
#include "octavo/kernels/error.h"
#include "tests/cpp/ranks.h"
#include "tests/cpp/refusal.h"

namespace octavo {

namespace {

using std::chrono::milliseconds;
using thread_ranks::BackendPtr;
using thread_ranks::run_ranks;
constexpr auto kEnough = milliseconds(20000), kShort = milliseconds(50);

c10::intrusive_ptr<SharedBackend> shared_over(const BackendPtr& backend, milliseconds timeout = kEnough) {
  const Reached reached = reach_by_shared_memory(backend, true, timeout);
  EXPECT_EQ(reached.why_not, "");
  return c10::intrusive_ptr<SharedBackend>::reclaim_copy(dynamic_cast<SharedBackend*>(reached.backend.get()));
}

/// Returns the text of the error of this category that `body` throws.
template <class Body>
std::string said_with(ErrorCode code, Body body) {
  try {
    body();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code);
    return error.what();
  }
  return "nothing was thrown";
}

at::Tensor values_of(int rank, std::int64_t count, at::ScalarType dtype = at::kFloat) {
  return (at::sin(at::arange(count, at::kDouble) * (0.37 * (rank + 1))) * 100).to(dtype);
}

TEST(MemoryFile, IsFoundByItsNameAlone) {
  const auto file = MemoryFile::create();
  file->grow(1 << 20);
  EXPECT_EQ(MemoryFile::open(file->name()), file);
  MemoryFile::Name other = file->name();
  other.token[0] ^= 1U;  // a name from another host, where the same process id has a file of the same kind
  EXPECT_EQ(MemoryFile::open(other), nullptr);
  MemoryFile::Name none = other;
  none.descriptor = 0;  // this descriptor exists, but it is not our file
  EXPECT_EQ(MemoryFile::open(none), nullptr);
}

TEST(MemoryFile, GrowsThoughSignalsInterruptIt) {
  struct sigaction ignored{}, before{};
  ignored.sa_handler = [](int) {};
  ASSERT_EQ(sigaction(SIGALRM, &ignored, &before), 0);
  const itimerval often{{0, 5000}, {0, 5000}}, never{};  // as often as a profiler does
  ASSERT_EQ(setitimer(ITIMER_REAL, &often, nullptr), 0);
  const auto file = MemoryFile::create();
  file->grow(std::uint64_t{512} << 20U);
  EXPECT_EQ(setitimer(ITIMER_REAL, &never, nullptr), 0);
  EXPECT_EQ(sigaction(SIGALRM, &before, nullptr), 0);
  EXPECT_EQ(file->size(), std::uint64_t{512} << 20U);
  std::memset(file->data() + (std::size_t{256} << 20U), 1, 4096);
}

TEST(MemoryFile, CannotGrowBeyondItsAddresses) {
  const auto file = MemoryFile::create();
  const std::string said = said_with(ErrorCode::out_of_memory, [&] { file->grow(file->name().capacity + 1); });
  EXPECT_NE(said.find("choose smaller buckets, or set symmetric_memory=False"), std::string::npos) << said;
}

TEST(SharedBlocks, TakesMemoryAgainAndJoinsWhatIsFree) {
  const auto blocks = std::make_shared<SharedBlocks>(MemoryFile::create(), 100);
  at::Tensor a = blocks->allocate(4096), b = blocks->allocate(1), c = blocks->allocate(5000);
  const void *const at_a = a.const_data_ptr(), *const at_c = c.const_data_ptr();
  EXPECT_TRUE(blocks->contains(a) && blocks->contains(c));
  EXPECT_FALSE(blocks->contains(at::empty({8}, at::kByte)));
  const std::uint64_t size = blocks->file().size();
  a = b = at::Tensor();
  const at::Tensor both = blocks->allocate(8192);
  EXPECT_EQ(both.const_data_ptr(), at_a);
  EXPECT_EQ(blocks->file().size(), size);
  c = at::Tensor();
  const at::Tensor larger = blocks->allocate(1 << 16);  // the last tensor's memory grows in place
  EXPECT_EQ(larger.const_data_ptr(), at_c);
}

TEST(SharedBackend, CollectivesAreThoseOfTheRanks) {
  for (const int world : {2, 3, 4}) {
    run_ranks(world, [&](const BackendPtr& backend, int rank) {
      const auto shared = shared_over(backend);
      for (const std::int64_t count : {0, 1, 7, 4096, 100003}) {
        for (const auto dtype : {at::kFloat, at::kDouble, at::kBFloat16, at::kInt}) {
          std::vector<at::Tensor> all;
          for (int peer = 0; peer < world; ++peer) all.push_back(values_of(peer, count * world, dtype));
          at::Tensor sum = all[0].clone(), input = all[static_cast<std::size_t>(rank)].clone();
          for (int peer = 1; peer < world; ++peer) sum += all[static_cast<std::size_t>(peer)];
          const auto part = [&](const at::Tensor& whole) { return whole.narrow(0, rank * count, count); };

          at::Tensor output = at::empty({count}, input.options()), own = part(input).clone();
          auto reduced = shared->_reduce_scatter_base(output, input, {});
          at::Tensor gathered = at::empty_like(input);
          auto gather = shared->_allgather_base(gathered, own, {});
          std::vector<at::Tensor> whole = {input.clone()};
          auto summed = shared->allreduce(whole, {});
          gather->wait();  // in another order than the calls were made
          summed->wait();
          reduced->wait();
          EXPECT_TRUE(output.equal(part(sum))) << world << " ranks, " << count << " of " << dtype;
          EXPECT_TRUE(whole[0].equal(sum));
          std::vector<at::Tensor> parts;
          for (int peer = 0; peer < world; ++peer) {
            parts.push_back(all[static_cast<std::size_t>(peer)].narrow(0, peer * count, count));
          }
          EXPECT_TRUE(gathered.equal(at::cat(parts)));
        }
      }
    });
  }
}

TEST(SharedBackend, RowsOfAnySizesGoWhereTheyBelong) {
  constexpr int kWorld = 3;
  // some ranks send no rows
  const auto rows = [](int from, int to) { return static_cast<std::int64_t>((2 * from + 5 * to) % 4); };
  run_ranks(kWorld, [&](const BackendPtr& backend, int rank) {
    const auto shared = shared_over(backend);
    std::vector<std::int64_t> sent, received;
    std::vector<at::Tensor> parts, expected;
    for (int peer = 0; peer < kWorld; ++peer) {
      sent.push_back(rows(rank, peer));
      received.push_back(rows(peer, rank));
      parts.push_back(at::full({sent.back(), 5}, 10 * rank + peer, at::kShort));
      expected.push_back(at::full({received.back(), 5}, 10 * peer + rank, at::kShort));
    }
    at::Tensor input = at::cat(parts), output = at::empty_like(at::cat(expected));
    shared->alltoall_base(output, input, received, sent, {})->wait();
    EXPECT_TRUE(output.equal(at::cat(expected)));
    shared->barrier({})->wait();
  });
}

/// What does not fit is refused before anything is published, so that the next collective finds all ranks in step.
TEST(SharedBackend, SizesAndDtypesThatDoNotFitAreRefused) {
  run_ranks(2, [&](const BackendPtr& backend, int rank) {
    const auto shared = shared_over(backend);
    at::Tensor four = at::ones({4}), seven = at::zeros({7}), nine = at::zeros({9}), twice = at::zeros({8}, at::kDouble);
    EXPECT_NE(refusal_of([&] { shared->_allgather_base(seven, four, {}); }).find("expected 8"), std::string::npos);
    EXPECT_NE(refusal_of([&] { shared->_reduce_scatter_base(four, nine, {}); }).find("expected 8"), std::string::npos);
    EXPECT_THROW(shared->_allgather_base(twice, four, {}), Error);
    EXPECT_THROW(shared->_reduce_scatter_base(four, twice, {}), Error);
    std::vector<std::int64_t> none, one = {4}, less = {1, 2}, negative = {-1, 5}, halves = {2, 2};
    const auto refused = [&](at::Tensor& output, std::vector<std::int64_t>& to, std::vector<std::int64_t>& from) {
      const std::string said = refusal_of([&] { shared->alltoall_base(output, four, to, from, {}); });
      EXPECT_NE(said.find("cannot be cut into 2 parts"), std::string::npos) << said;
    };
    at::Tensor other = at::zeros({4}), scalar = at::zeros({});
    refused(seven, none, none);
    refused(scalar, one, none);
    refused(other, halves, less);
    refused(other, negative, halves);
    refused(other, one, halves);
    std::vector<std::int64_t> more = {3, 1}, fewer = {1, 3};
    const std::string said = refusal_of([&] { shared->alltoall_base(other, four, more, fewer, {}); });
    EXPECT_NE(said.find("bytes for itself"), std::string::npos) << said;
    shared->alltoall_base(other, four, halves, none, {})->wait();
    EXPECT_TRUE(other.equal(four)) << rank;
  });
}

TEST(SharedBackend, GrowsWithWhatIsSentAndTakesMemoryAgain) {
  run_ranks(2, [&](const BackendPtr& backend, int rank) {
    const auto shared = shared_over(backend);
    const auto gather = [&](std::int64_t count) {
      at::Tensor own = at::full({count}, rank, at::kByte), all = at::empty({2 * count}, at::kByte);
      shared->_allgather_base(all, own, {})->wait();
      return all.sum(at::kLong).item<std::int64_t>();
    };
    EXPECT_EQ(gather(1 << 10), 1 << 10);
    EXPECT_EQ(gather(1 << 22), 1 << 22);
    const std::uint64_t size = shared->ranks()->files()[static_cast<std::size_t>(rank)]->size();
    for (int again = 0; again < 2 * static_cast<int>(HostRanks::kSlots); ++again) ASSERT_EQ(gather(5), 5);
    for (int again = 0; again < 10; ++again) EXPECT_EQ(gather(1 << 22), 1 << 22);
    // a rank may be one step ahead
    EXPECT_LE(shared->ranks()->files()[static_cast<std::size_t>(rank)]->size(), 3 * size);
  });
}

/// A step that is abandoned never reads what it was sent; its ranks still continue.
TEST(SharedBackend, WorksThatNobodyWaitsForAreForgotten) {
  run_ranks(2, [&](const BackendPtr& backend, int rank) {
    const auto shared = shared_over(backend);
    at::Tensor own = at::full({1}, rank, at::kInt), all = at::empty({2}, at::kInt);
    for (std::uint32_t turn = 0; turn < 2 * HostRanks::kSlots; ++turn) shared->_allgather_base(all, own, {});
    shared->_allgather_base(all, own, {})->wait();
    EXPECT_EQ(all.sum().item<int>(), 1);
    constexpr std::int64_t kBytes = 1 << 20, kTurns = 100;
    at::Tensor large = at::zeros({kBytes}, at::kByte), room = at::empty({2 * kBytes}, at::kByte);
    for (std::int64_t turn = 0; turn < kTurns; ++turn) {
      shared->_allgather_base(room, large, {});
      shared->_allgather_base(all, own, {})->wait();
    }
    EXPECT_LT(shared->ranks()->files()[static_cast<std::size_t>(rank)]->size(), kTurns * kBytes / 4);
  });
}

TEST(SharedBackend, WorksMayWaitForLongerThanThereArePlaces) {
  run_ranks(2, [&](const BackendPtr& backend, int rank) {
    const auto shared = shared_over(backend);
    std::vector<std::vector<at::Tensor>> sums;
    std::vector<c10::intrusive_ptr<c10d::Work>> works;
    for (std::uint32_t turn = 0; turn < 3 * HostRanks::kSlots; ++turn) {
      sums.push_back({at::full({1}, rank + turn, at::kLong)});
      works.push_back(shared->allreduce(sums.back(), {}));
    }
    for (std::size_t turn = works.size(); turn-- > 0;) {
      works[turn]->wait();
      ASSERT_EQ(sums[turn][0].item<std::int64_t>(), static_cast<std::int64_t>(2 * turn + 1));
    }
  });
}

/// Its messages are as long as they are: room for the longest one is for back ends that end a receiver without it.
TEST(SharedBackend, CarriesSparseGradientsOfACompressor) {
  run_ranks(2, [&](const BackendPtr& backend, int rank) {
    const std::vector<ParameterInfo> table = {{"embedding", 64 * 32, false, 64}};
    Compressor compressor(std::make_unique<Wire>(shared_over(backend), kEnough), Plan::parse("int4+ef"), table);
    at::Tensor places = at::zeros({1, 2}, at::kLong);
    places[0][1] = 3 + rank;
    at::Tensor gradient = at::sparse_coo_tensor(places, at::ones({2, 32}), {64, 32});
    compressor.begin_step();
    compressor.reduce(gradient, {{0, 0}});
    compressor.end_step();
    at::Tensor mean = at::zeros({64, 32});
    mean[0].fill_(1);
    mean.slice(0, 3, 5).fill_(0.5);
    EXPECT_TRUE(at::equal(gradient.to_dense(), mean));
  });
}

/// A wire reads what other ranks have written where they wrote it, without a copy.
TEST(SharedBackend, AWireCopiesNothing) {
  run_ranks(3, [&](const BackendPtr& backend, int rank) {
    Wire wire(shared_over(backend), kEnough), beside(backend, kEnough);
    const auto meet = [&] {
      at::Tensor nothing = at::zeros({1});
      beside.all_reduce(nothing);
    };
    ASSERT_TRUE(wire.shares_memory(c10::kCPU));
    const std::vector<std::uint64_t> received(3, 4);
    at::Tensor sent;
    const std::uint8_t* first = nullptr;
    for (std::uint8_t turn = 0; turn < 5; ++turn) {
      std::uint8_t* const message = wire.reserve_to_send(sent, 4, c10::kCPU);
      if (turn == 0) first = message;
      EXPECT_EQ(message, first);  // all ranks have released the memory
      std::fill_n(message, 4, static_cast<std::uint8_t>(16 * turn + rank));
      {
        Transfer transfer = wire.exchange_in_place(sent, std::vector<Parcel>(3, {0, 4}), received);
        transfer.wait();
        for (int peer = 0; peer < 3; ++peer) {
          if (peer == rank) continue;
          EXPECT_EQ(transfer.from(peer)[3], 16 * turn + peer);
        }
        EXPECT_NE(wire.reserve_to_send(sent, 4, c10::kCPU), message);  // the other ranks may still read there
        meet();
      }
      meet();
    }
    EXPECT_EQ(wire.sent_bytes(), 5U * 2 * 4);
  });
}

TEST(HostRanks, WhoDoesNotComeIsNamed) {
  run_ranks(3, [&](const BackendPtr& backend, int rank) {
    const auto shared = shared_over(backend, kShort);
    at::Tensor own = at::ones({3}), all = at::empty({9});
    if (rank != 1) {
      const std::string said = said_with(ErrorCode::timeout, [&] { shared->_allgather_base(all, own, {})->wait(); });
      EXPECT_NE(said.find("rank 1 did not send within 50 ms; the process group"), std::string::npos) << said;
    }
    at::Tensor last = at::zeros({1});
    Wire(backend, kEnough).all_reduce(last);  // no rank leaves before the others are done
  });
}

TEST(HostRanks, WhoHasLeftIsNamedAtOnceAndWhatItSentIsRead) {
  run_ranks(2, [&](const BackendPtr& backend, int rank) {
    auto shared = shared_over(backend, std::chrono::hours(1));
    at::Tensor own = at::full({3}, rank + 1.0F), all = at::empty({6});
    auto work = shared->_allgather_base(all, own, {});
    if (rank == 1) {
      work.reset();
      shared.reset();
      return;
    }
    work->wait();
    EXPECT_EQ(all[5].item<float>(), 2);
    const std::string said =
        said_with(ErrorCode::communication, [&] { shared->_allgather_base(all, own, {})->wait(); });
    EXPECT_NE(said.find("has ended or given up its connection"), std::string::npos) << said;
  });
}

TEST(HostRanks, RanksThatMakeDifferentCallsAreToldSo) {
  run_ranks(2, [&](const BackendPtr& backend, int rank) {
    const auto shared = shared_over(backend);
    at::Tensor own = at::ones({3 + rank}), all = at::empty({2 * (3 + rank)});
    const std::string said =
        said_with(ErrorCode::communication, [&] { shared->_allgather_base(all, own, {})->wait(); });
    EXPECT_NE(said.find("all ranks must make the same calls in the same order"), std::string::npos) << said;
  });
}

/// A rank writes the address of its parcel to memory to which every rank may write.
TEST(HostRanks, AParcelOutsideOfItsRanksMemoryIsRefused) {
  constexpr std::uint64_t kBytes = 123'457;  // the test looks for this size in rank 0's memory, next to the address
  run_ranks(2, [&](const BackendPtr& backend, int rank) {
    Wire wire(backend, kEnough);
    at::Tensor nothing = at::zeros({1});
    const auto ranks = HostRanks::connect(wire, kEnough).ranks;
    ASSERT_TRUE(ranks);
    const at::Tensor sent = ranks->room(kBytes);
    const auto posting = ranks->post(sent, std::vector<Parcel>(2, {0, kBytes}), {kBytes, kBytes});
    wire.all_reduce(nothing);  // both ranks have posted
    if (rank == 1) {
      auto* word = reinterpret_cast<std::uint64_t*>(ranks->files()[0]->data());
      while (word[1] != kBytes) ++word;
      for (; word[1] == kBytes; word += 2) word[0] = std::uint64_t{1} << 45;
      const std::string said = said_with(ErrorCode::communication, [&] { posting->await(kEnough); });
      EXPECT_NE(said.find("which is not in its memory"), std::string::npos) << said;
    }
    wire.all_reduce(nothing);  // rank 0's memory must exist until then
  });
}

TEST(ReachBySharedMemory, NotWhereOneRankCannotOrNoneWants) {
  run_ranks(1, [&](const BackendPtr& backend, int) {
    const Reached reached = reach_by_shared_memory(backend, true, kEnough);
    EXPECT_EQ(reached.backend, backend);
    EXPECT_EQ(reached.why_not, "there is only one rank");
  });
  run_ranks(2, [&](const BackendPtr& backend, int) {
    EXPECT_EQ(reach_by_shared_memory(backend, false, kEnough).backend, backend);
    const Reached reached = reach_by_shared_memory(backend, std::nullopt, kEnough);
    EXPECT_NE(reached.backend, backend);
    EXPECT_EQ(reach_by_shared_memory(reached.backend, true, kEnough).backend, reached.backend);
  });
}

TEST(SharedSymmetricMemory, KeepsNoTransferWaiting) {
  run_ranks(2, [&](const BackendPtr& backend, int rank) {
    const auto ranks = shared_over(backend)->ranks();
    SharedSymmetricMemory memory(ranks, 8, kEnough);
    memory.get_buffer(rank, {2}, at::kFloat, 0).fill_(rank + 1);
    const at::Tensor nothing = ranks->room(0);
    for (std::uint32_t turn = 0; turn <= HostRanks::kSlots; ++turn) {
      ranks->post(nothing, std::vector<Parcel>(2), std::vector<std::uint64_t>(2))->await(kEnough);
    }
    memory.barrier(0, 0);
    EXPECT_EQ(memory.get_buffer(1 - rank, {2}, at::kFloat, 0)[1].item<float>(), 2 - rank);
    memory.barrier(0, 0);
  });
}

TEST(SharedSymmetricMemory, RanksReadAndWriteOneAnothersBuffers) {
  for (const int world : {2, 3}) {
    run_ranks(world, [&](const BackendPtr& backend, int rank) {
      SharedSymmetricMemory memory(shared_over(backend)->ranks(), 1000, kEnough);
      EXPECT_EQ(memory.get_buffer_size(), 1000U);
      const auto of = [&](int peer) { return memory.get_buffer(peer, {250}, at::kFloat, 0); };
      EXPECT_TRUE(of(rank).equal(at::zeros({250})));
      of(rank).fill_(rank + 1);
      for (int turn = 0; turn < 3; ++turn) {
        memory.barrier(1, 0);
        for (int peer = 0; peer < world; ++peer) EXPECT_EQ(of(peer)[249].item<float>(), peer + 1);
        memory.barrier(0, 0);
        of((rank + 1) % world).fill_((rank + 1) % world + 1);
      }
      if (rank == 0) {
        of(1)[0] = 77;
        memory.put_signal(1, 2, 0);
      } else if (rank == 1) {
        memory.wait_signal(0, 2, 0);
        EXPECT_EQ(of(1)[0].item<float>(), 77);
        const std::string said = said_with(ErrorCode::timeout, [&] { memory.wait_signal(0, 2, 20); });
        EXPECT_NE(said.find("rank 0 did not answer a signal within 20 ms"), std::string::npos) << said;
      }
      EXPECT_NE(refusal_of([&] { memory.barrier(-1, 0); }).find("expected a channel below"), std::string::npos);
      memory.barrier(0, 0);
    });
  }
}

}  // namespace

}  // namespace octavo
