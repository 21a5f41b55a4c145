// SPDX-License-Identifier: Apache-2.0
#include "octavo/device/stream_event.h"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "octavo/kernels/error.h"

namespace octavo {

namespace {

constexpr auto kHostType = c10::DeviceType::CPU;
const c10::Stream kStream(c10::Stream::DEFAULT, c10::Device(kHostType));

TEST(StreamEvent, OfTheHostMeasuresTime) {
  const auto start = make_event(kHostType, true), end = make_event(kHostType, true);
  start->record(kStream);
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  end->record(kStream);
  end->block(kStream);
  end->synchronize();
  EXPECT_TRUE(end->query());
  EXPECT_GE(start->elapsed_ms(*end), 5);
  EXPECT_LE(end->elapsed_ms(*start), -5);
  start->record(kStream);
  EXPECT_GE(end->elapsed_ms(*start), 0);
}

TEST(StreamEvent, WithoutTimesSaysSo) {
  const auto timed = make_event(kHostType, true), untimed = make_event(kHostType, false);
  EXPECT_THROW(timed->elapsed_ms(*timed), Error);
  timed->record(kStream);
  untimed->record(kStream);
  EXPECT_EQ(timed->elapsed_ms(*timed), 0);
  EXPECT_THROW(timed->elapsed_ms(*untimed), Error);
  EXPECT_THROW(untimed->elapsed_ms(*timed), Error);
}

}  // namespace

}  // namespace octavo
