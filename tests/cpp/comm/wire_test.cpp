// SPDX-License-Identifier: Apache-2.0
#include "octavo/comm/wire.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <stdexcept>
#include <string>

#include "octavo/comm/small_collectives.h"
#include "octavo/comm/time_left.h"
#include "octavo/kernels/error.h"
#include "tests/cpp/ranks.h"
#include "tests/cpp/refusal.h"

namespace octavo {
namespace {

using std::chrono::milliseconds;

/// The calls that a rank made to Gloo, in order.
struct Calls {
  struct Message {
    std::string kind;
    int peer, tag;
    void* bytes;
    std::int64_t count;
    bool is_waited_for = false;
  };
  std::vector<Message> messages;
  int lost_peer = -1;
};

/// Rank 1 of 3, which reports Gloo's name.
class RecordedGloo : public c10d::Backend {
 public:
  explicit RecordedGloo(Calls& calls) : Backend(1, 3), calls_(calls) {}

  const std::string getBackendName() const override { return "gloo"; }
  c10::intrusive_ptr<c10d::Work> send(std::vector<at::Tensor>& tensors, int rank, int tag) override {
    return record("send", tensors.at(0), rank, tag);
  }
  c10::intrusive_ptr<c10d::Work> recv(std::vector<at::Tensor>& tensors, int rank, int tag) override {
    return record("receive", tensors.at(0), rank, tag);
  }

 private:
  class Message : public c10d::Work {
   public:
    Message(Calls& calls, std::size_t number) : calls_(calls), number_(number) {}
    bool wait(milliseconds) override { return calls_.messages[number_].is_waited_for = true; }

   private:
    Calls& calls_;
    std::size_t number_;
  };

  c10::intrusive_ptr<c10d::Work> record(const char* kind, const at::Tensor& bytes, int rank, int tag) {
    if (rank == calls_.lost_peer) {
      throw std::runtime_error(
          "[/a/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:5. This is "
          "typically caused by a remote worker crashing.\nbacktrace");
    }
    calls_.messages.push_back({kind, rank, tag, bytes.data_ptr(), bytes.numel()});
    return c10::make_intrusive<Message>(calls_, calls_.messages.size() - 1);
  }

  Calls& calls_;
};

at::Tensor bytes_of(std::int64_t count, int value) { return at::full({count}, value, at::kByte); }

int waited_for(const Calls& calls) {
  return static_cast<int>(std::ranges::count(calls.messages, true, &Calls::Message::is_waited_for));
}

TEST(Wire, OverGlooARankIsReadyToReceiveFromAllBeforeItSends) {
  Calls calls;
  Wire wire(c10::make_intrusive<RecordedGloo>(calls), milliseconds(1000));
  at::Tensor sent = bytes_of(10, 7), got = bytes_of(12, 0);
  const std::vector<Parcel> parcels = {{0, 4}, {4, 2}, {0, 4}};  // two ranks get the same bytes
  wire.exchange(sent, parcels, got, std::vector<std::uint64_t>{3, 2, 7}).wait();
  auto* const in = got.mutable_data_ptr<std::uint8_t>();
  // for each peer in turn, a message and an empty one behind it
  const Calls::Message expected[] = {{"receive", 2, 1, in + 5, 7},       {"receive", 2, 1, nullptr, 0},
                                     {"receive", 0, 1, in, 3},           {"receive", 0, 1, nullptr, 0},
                                     {"send", 2, 1, sent.data_ptr(), 4}, {"send", 2, 1, nullptr, 0},
                                     {"send", 0, 1, sent.data_ptr(), 4}, {"send", 0, 1, nullptr, 0}};
  ASSERT_EQ(calls.messages.size(), std::size(expected));
  for (std::size_t i = 0; i < std::size(expected); ++i) {
    const auto& [kind, peer, tag, bytes, count, is_waited_for] = calls.messages[i];
    EXPECT_EQ(kind, expected[i].kind);
    EXPECT_EQ(peer, expected[i].peer);
    EXPECT_EQ(tag, expected[i].tag) << "one tag: messages of ranks that disagree meet, and do not wait for ever";
    EXPECT_EQ(count, expected[i].count);
    EXPECT_TRUE(count == 0 || bytes == expected[i].bytes);
  }
  EXPECT_EQ(waited_for(calls), 8);
  EXPECT_EQ(in[3], 7) << "what a rank has for itself";
  EXPECT_EQ(wire.sent_bytes(), 8U);
}

TEST(Wire, OverGlooALostPeerIsToldWhoWaitsAndTheOthersGetTheirMessages) {
  Calls calls;
  calls.lost_peer = 2;
  Wire wire(c10::make_intrusive<RecordedGloo>(calls), milliseconds(1000));
  at::Tensor sent = bytes_of(6, 7), got = bytes_of(6, 0);
  const std::vector<std::uint64_t> sizes = {2, 2, 2};
  Transfer transfer = wire.exchange(sent, one_after_another(sizes), got, sizes);
  EXPECT_EQ(calls.messages.size(), 4U) << "those of rank 0";
  try {
    transfer.wait();
    ADD_FAILURE() << "a lost peer was not told";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::communication);
    const std::string reason =
        " (with rank 2: Connection closed by peer [127.0.0.1]:5); ";  // and no place in Gloo's sources
    EXPECT_NE(std::string(error.what()).find(reason), std::string::npos) << error.what();
  }
}

TEST(Wire, OverGlooWhatNobodyHasWaitedForIsWaitedForAtTheEnd) {
  Calls calls;
  {
    Wire wire(c10::make_intrusive<RecordedGloo>(calls), milliseconds(1000));
    at::Tensor sent = bytes_of(6, 7), got = bytes_of(6, 0);
    const std::vector<std::uint64_t> sizes = {2, 2, 2};
    {
      const Transfer given_up = wire.exchange(sent, one_after_another(sizes), got, sizes);
    }
    wire.exchange(sent, one_after_another(sizes), got, sizes).wait();
    EXPECT_EQ(waited_for(calls), 8);
  }
  EXPECT_EQ(waited_for(calls), 16);
}

TEST(Wire, OneMessageForAllAndPartsOfABufferTravelByAnyBackEnd) {
  thread_ranks::run_ranks(3, [](const thread_ranks::BackendPtr& backend, int rank) {
    Wire wire(backend, milliseconds(1000));
    at::Tensor sent = bytes_of(4, 10 + rank), got = bytes_of(12, 0);
    sent[3] = 20 + rank;
    const std::vector<std::vector<Parcel>> cases = {
        std::vector<Parcel>(3, {0, 4}),  // the same parcel for all ranks
        {{3, 1}, {0, 3}, {1, 3}},        // in another order, and overlapping
        {{0, 0}, {1, 1}, {2, 2}},        // one after another, beginning at an offset
    };
    for (const auto& parcels : cases) {
      std::vector<std::uint64_t> sizes(3, parcels[static_cast<std::size_t>(rank)].bytes);
      got.zero_();
      wire.exchange(sent, parcels, got, sizes).wait();
      const auto [offset, bytes] = parcels[static_cast<std::size_t>(rank)];
      for (int peer = 0; peer < 3; ++peer) {
        for (std::uint64_t i = 0; i < bytes; ++i) {
          const auto at = static_cast<std::int64_t>(static_cast<std::uint64_t>(peer) * bytes + i);
          EXPECT_EQ(got[at].item<int>(), (offset + i == 3 ? 20 : 10) + peer);
        }
      }
    }
  });
}

TEST(Wire, AllRanksGetWhatEachGivesAlsoWhereOneGivesNothing) {
  thread_ranks::run_ranks(3, [](const thread_ranks::BackendPtr& backend, int rank) {
    Wire wire(backend, milliseconds(1000));
    const std::vector<std::uint64_t> bytes = {3, 0, 2};
    const at::Tensor own = bytes_of(static_cast<std::int64_t>(bytes[static_cast<std::size_t>(rank)]), 10 + rank);
    const at::Tensor all = all_gather(wire, own, bytes, "weight", "test");
    EXPECT_TRUE(all.equal(at::tensor({10, 10, 10, 12, 12}, at::kByte)));
  });
}

TEST(Wire, AnAllGatherOfOtherBytesThanToldSendsNothing) {
  Calls calls;
  Wire wire(c10::make_intrusive<RecordedGloo>(calls), milliseconds(1000));
  for (const std::vector<std::uint64_t>& wrong : {std::vector<std::uint64_t>{4, 4}, {4, 5, 4}}) {
    EXPECT_THROW(all_gather(wire, bytes_of(4, 7), wrong, "weight", "test"), Error);
  }
  EXPECT_TRUE(calls.messages.empty());
}

/// Over Gloo, the process of a rank that gets a longer message than it has room for would end.
TEST(Wire, AnAllGatherOfOtherValuesIsAnErrorOnAllRanks) {
  thread_ranks::run_ranks(2, [](const thread_ranks::BackendPtr& backend, int rank) {
    Wire wire(backend, milliseconds(1000));
    const std::vector<std::uint64_t> bytes = {3, 3};
    const auto refused = [&](const std::vector<std::uint64_t>& sizes, const char* of) {
      const at::Tensor own = bytes_of(static_cast<std::int64_t>(sizes[static_cast<std::size_t>(rank)]), rank);
      return refusal_of([&] { all_gather(wire, own, sizes, of, "test.gather"); }, ErrorCode::communication);
    };
    const std::string of_names = refused(bytes, rank == 0 ? "weight" : "bias");
    EXPECT_NE(of_names.find(rank == 0 ? "those of weight" : "those of bias"), std::string::npos) << of_names;
    const std::string of_sizes = refused(rank == 0 ? bytes : std::vector<std::uint64_t>{5, 5}, "weight");
    EXPECT_EQ(of_sizes.find("[test.gather] rank "), 0U) << of_sizes;
  });
}

TEST(TimeLeft, ATimeoutThatNoClockCanAddIsALongOne) {
  EXPECT_GT(TimeLeft(milliseconds::max())(), std::chrono::years(99));
}

}  // namespace
}  // namespace octavo
