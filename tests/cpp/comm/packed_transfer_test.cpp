// SPDX-License-Identifier: Apache-2.0
// Payloads whose size depends on the values: what is sent, and what is refused.
#include "octavo/comm/schedule/packed_transfer.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "octavo/codec/block_coding.h"
#include "octavo/codec/registry.h"
#include "octavo/comm/schedule/messages.h"
#include "octavo/comm/schedule/one_phase.h"
#include "octavo/comm/schedule/two_phase.h"
#include "octavo/kernels/error.h"
#include "tests/cpp/ranks.h"

namespace octavo {

namespace {

using thread_ranks::BackendPtr;
using thread_ranks::run_ranks;
constexpr auto kWait = std::chrono::milliseconds(20000);

at::Tensor values_of(int rank, std::int64_t count) {
  return at::sin(at::arange(count, at::kFloat) * (0.37 * (rank + 1))).pow(5);
}

/// Tensors of several sizes; every second one has the other codec.
struct TensorsOfARank {
  std::vector<at::Tensor> values;
  std::vector<Contribution> contributions;

  TensorsOfARank(int rank, const Codec& codec, const Codec& other) {
    for (const std::int64_t count : {1, 5001, 63, 200000, 1000}) {
      values.push_back(values_of(rank, count));
      const Codec& used = values.size() % 2 == 1 ? other : codec;
      contributions.push_back(
          {values.back().mutable_data_ptr<float>(), static_cast<std::uint64_t>(count), &used, &used});
    }
  }
};

/// The average over a packed codec is that of its payloads: bf16:lossless gives the same result as bf16.
TEST(PackedTransfer, PackingChangesNoResult) {
  const CodecPtr packing = make_codec("bf16:lossless");
  const Codec &plain = block_coding(BlockCodec::bf16), &other = block_coding(BlockCodec::int4);
  for (const int world : {1, 2, 3, 4}) {
    run_ranks(world, [&](const BackendPtr& backend, int rank) {
      Wire wire(backend, kWait);
      PhaseSeconds seconds;
      TwoPhase two_phase(wire, seconds);
      TensorsOfARank packed(rank, *packing, other), expected(rank, plain, other);
      const Outcome outcome = two_phase.run({{}, packed.contributions, static_cast<double>(world), 1});
      EXPECT_EQ(two_phase.transfers(), world == 1 ? 2 : 4);
      const std::uint64_t packed_bytes = wire.sent_bytes();
      two_phase.run({{}, expected.contributions, static_cast<double>(world), 2});
      EXPECT_EQ(two_phase.transfers(), 2);
      for (std::size_t t = 0; t < packed.values.size(); ++t) {
        EXPECT_TRUE(at::equal(packed.values[t], expected.values[t])) << "tensor " << t << " of " << world << " ranks";
      }
      if (world == 1) return;
      EXPECT_LT(packed_bytes, 0.9 * static_cast<double>(wire.sent_bytes() - packed_bytes));
      ASSERT_EQ(outcome.packed.size(), packed.values.size());
      EXPECT_GT(outcome.packed[3].bytes, other.payload_bytes(100000));
      EXPECT_LT(outcome.packed[2].bytes, outcome.packed[1].bytes);
    });
  }
}

TEST(PackedTransfer, OwnersThatKeepTheirSumsPackOnce) {
  const CodecPtr packing = make_codec("bf16:lossless");
  for (const int world : {1, 2, 3}) {
    run_ranks(world, [&](const BackendPtr& backend, int rank) {
      Wire wire(backend, kWait);
      PhaseSeconds seconds;
      OnePhase one_phase(wire, seconds);
      at::Tensor packed = values_of(rank, 5000), expected = packed.clone();
      for (const auto& [codec, values] :
           {std::pair(packing.get(), packed), std::pair(&block_coding(BlockCodec::bf16), expected)}) {
        Contribution tensor{values.mutable_data_ptr<float>(), 5000, codec, &block_coding(BlockCodec::fp32)};
        tensor.owner_keeps_sum = true;
        one_phase.run({{}, {tensor}, static_cast<double>(world), 1});
        EXPECT_EQ(one_phase.transfers(), values.is_same(packed) && world > 1 ? 2 : 1);
      }
      EXPECT_TRUE(at::equal(packed, expected));
    });
  }
}

TEST(PackedTransfer, WhatIsSentIsWhatWasPackedAndHeaders) {
  const CodecPtr codec = make_codec("threshold:10");
  run_ranks(3, [&](const BackendPtr& backend, int rank) {
    Wire wire(backend, kWait);
    PhaseSeconds seconds;
    TwoPhase two_phase(wire, seconds);
    at::Tensor values = at::zeros({3 * 64});
    for (int owner = 0; owner < 3; ++owner) values[64 * owner + rank].fill_(1);  // one value in each range
    Contribution tensor{values.mutable_data_ptr<float>(), 3 * 64, codec.get(), codec.get()};
    const Outcome outcome = two_phase.run({{}, {tensor}, 1, 7});
    // a payload of one value: the count, the value, a word of which 6 bits are its index, and one word of the others;
    // downwards there are three values, one of them above ten times the mean
    const std::uint64_t header = sizeof(MessageHeader), size = header + 8, payload = 16;
    EXPECT_EQ(wire.sent_bytes(), 2 * (size + header + 4 + payload) + 2 * (size + header + payload));
    ASSERT_EQ(outcome.packed.size(), 1U);
    EXPECT_EQ(outcome.packed[0].bytes, 4 * payload);
  });
}

TEST(PackedTransfer, RanksThatDisagreeAreTold) {
  const CodecPtr codec = make_codec("bf16:lossless");
  run_ranks(3, [&](const BackendPtr& backend, int rank) {
    Wire wire(backend, kWait);
    PhaseSeconds seconds;
    TwoPhase two_phase(wire, seconds);
    at::Tensor values = values_of(rank, 1000);
    const Contribution tensor{values.mutable_data_ptr<float>(), 1000, codec.get(), codec.get()};
    two_phase.begin({{}, {tensor}, 3, rank == 1 ? 1U : 0U});
    try {
      two_phase.advance();
      ADD_FAILURE() << "rank " << rank << " took what did not fit";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::communication);
      EXPECT_NE(std::string(error.what()).find("another step, plan or model"), std::string::npos) << error.what();
    }
    EXPECT_TRUE(at::equal(values, values_of(rank, 1000)));
  });
}

/// Flips some of the bits in each of the four transfers.
TEST(PackedTransfer, AFlippedBitIsAnErrorAndReachesNoTensor) {
  constexpr std::int64_t kCount = 300;
  const CodecPtr codec = make_codec("bf16:lossless");
  for (int transfer = 0; transfer < 4; ++transfer) {
    const bool is_of_sizes = transfer % 2 == 0;
    for (std::int64_t bit = 0; bit < (is_of_sizes ? 192 : 1120); bit += is_of_sizes ? 5 : 31) {
      run_ranks(2, [&](const BackendPtr& backend, int rank) {
        Wire wire(c10::make_intrusive<thread_ranks::FlippedBit>(backend, rank == 1 ? transfer : -1, bit), kWait);
        PhaseSeconds seconds;
        TwoPhase two_phase(wire, seconds);
        at::Tensor values = values_of(rank, kCount);
        Contribution tensor{values.mutable_data_ptr<float>(), kCount, codec.get(), codec.get()};
        two_phase.begin({{}, {tensor}, 2});
        for (int next = 0; next < transfer; ++next) two_phase.advance();
        if (rank == 0) return;  // stops here, as the other rank will
        try {
          transfer == 3 ? void(two_phase.finish()) : two_phase.advance();
          ADD_FAILURE() << "bit " << bit << " of transfer " << transfer << " was taken";
        } catch (const Error& error) {
          EXPECT_EQ(error.code(), ErrorCode::communication);
        }
        EXPECT_TRUE(at::equal(values, values_of(rank, kCount)));
      });
    }
  }
}

/// Sends what another rank's program might send. The messages are sealed, so that only their content can be wrong.
class Forger {
 public:
  Forger(Wire& wire, std::uint64_t told_bytes, std::vector<std::uint8_t> message)
      : wire_(wire), told_bytes_(told_bytes), message_(std::move(message)) {}

  void send_size() {
    std::vector<std::uint8_t> told(sizeof(MessageHeader) + sizeof told_bytes_);
    std::memcpy(told.data() + sizeof(MessageHeader), &told_bytes_, sizeof told_bytes_);
    exchange(told, told.size());
  }
  void send_message(std::uint64_t received_bytes) { exchange(message_, received_bytes); }

 private:
  void exchange(std::vector<std::uint8_t>& bytes, std::uint64_t received_bytes) {
    seal(bytes.data(), bytes.size(), 0);
    at::Tensor send = at::from_blob(bytes.data(), {static_cast<std::int64_t>(bytes.size())}, at::kByte), receive;
    const std::vector<std::uint64_t> out(2, bytes.size()), in(2, received_bytes);
    exchange_with_others(wire_, c10::kCPU, send, out, receive, in).wait();
  }

  Wire& wire_;
  std::uint64_t told_bytes_;
  std::vector<std::uint8_t> message_;
};

constexpr std::uint64_t kForged = 1000;  // the number of values of the tensor; rank 0 owns 512 of them

/// Returns rank 0's error about what rank 1 sent it. `is_taken`: no error is expected.
std::string error_of(const Codec& codec, std::uint64_t told_bytes, const std::vector<std::uint8_t>& message,
                     bool is_taken = false) {
  std::string said;
  run_ranks(2, [&](const BackendPtr& backend, int rank) {
    Wire wire(backend, kWait);
    at::Tensor values = values_of(rank, kForged);
    Contribution tensor{values.mutable_data_ptr<float>(), kForged, &codec, &codec};
    PhaseSeconds seconds;
    TwoPhase two_phase(wire, seconds);
    if (rank == 1) {
      Forger forger(wire, told_bytes, message);
      forger.send_size();
      if (message.empty()) return;
      const Codec& other = codec;  // packs what rank 0 sends, to know its size
      at::Tensor own = values_of(0, kForged);
      std::vector<std::uint8_t> payload(other.payload_bytes(kForged - 512) + 4), packed(payload.size());
      other.encode(c10::kCPU, {own.const_data_ptr<float>() + 512}, {payload.data(), kForged - 512, {0, kForged - 512}},
                   nullptr);
      const std::uint64_t bytes = other.pack(payload.data(), kForged - 512, packed.data());
      forger.send_message(sizeof(MessageHeader) + 4 + (bytes + 3) / 4 * 4);
      if (is_taken) forger.send_size();  // takes part in the next transfer
      return;
    }
    two_phase.begin({{}, {tensor}, 2});
    try {
      two_phase.advance();
      if (!message.empty()) two_phase.advance();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::communication);
      said = error.what();
    }
    EXPECT_TRUE(at::equal(values, values_of(rank, kForged)));
  });
  return said;
}

TEST(PackedTransfer, ASizeOutOfBoundsIsRefusedBeforeThereIsRoomForIt) {
  const CodecPtr codec = make_codec("bf16:lossless");
  const std::uint64_t before = sizeof(MessageHeader) + 4, most = before + codec->payload_bytes(512);
  for (const std::uint64_t told : {std::uint64_t{0}, before - 1, most + 1, std::uint64_t{1} << 62, ~std::uint64_t{0}}) {
    const std::string said = error_of(*codec, told, {});
    EXPECT_NE(said.find("its message has " + std::to_string(told) + " bytes"), std::string::npos) << said;
  }
}

/// These packed payloads are cut off, too long, or refer to elements that do not exist.
TEST(PackedTransfer, PayloadsThatAreNoneAreRefused) {
  for (const char* text : {"bf16:lossless", "threshold:3", "lsh:int4"}) {
    const CodecPtr codec = make_codec(text);
    std::vector<std::uint8_t> payload(codec->payload_bytes(512)), packed(payload.size());
    const at::Tensor values = values_of(1, 512);
    codec->encode(c10::kCPU, {values.const_data_ptr<float>()}, {payload.data(), 512, {0, 512}}, nullptr);
    packed.resize((codec->pack(payload.data(), 512, packed.data()) + 3) / 4 * 4);
    std::vector<std::uint8_t> message(sizeof(MessageHeader) + 4 + packed.size());
    std::copy(packed.rbegin(), packed.rend(), message.rbegin());
    EXPECT_EQ(error_of(*codec, message.size(), message, /*is_taken=*/true), "") << text;

    std::vector<std::uint8_t> longer = message, shorter = message, empty = message, forged = message;
    longer.resize(message.size() + 4);
    shorter.resize(message.size() - 4);
    empty.resize(sizeof(MessageHeader) + 4);
    std::fill_n(forged.begin() + sizeof(MessageHeader) + 4, 4, std::uint8_t{255});
    std::vector<std::vector<std::uint8_t>> all = {shorter, empty, forged};
    if (longer.size() <= sizeof(MessageHeader) + 4 + codec->payload_bytes(512)) all.push_back(longer);
    for (const auto& bad : all) {
      const std::string said = error_of(*codec, bad.size(), bad);
      EXPECT_NE(said.find("not of the sizes that they name"), std::string::npos) << text << ": " << said;
    }
  }
}

}  // namespace

}  // namespace octavo
