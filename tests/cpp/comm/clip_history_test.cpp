// SPDX-License-Identifier: Apache-2.0
#include "octavo/comm/clip_history.h"

#include <gtest/gtest.h>

namespace octavo {

namespace {

TEST(ClipHistory, AClipIsABurstWhereItIsLessThanHalfOfTheUsualOne) {
  ClipHistory clips;
  const auto is_burst_next = [&clips](double factor) {
    ClipHistory next = clips;
    next.begin_step();
    return next.add_clip(factor).is_of_burst;
  };
  EXPECT_FALSE(is_burst_next(0.001)) << "a first clip is no burst";
  clips.add_clip(0.8);
  EXPECT_FALSE(is_burst_next(0.41));
  EXPECT_TRUE(is_burst_next(0.39));
  for (int step = 0; step < 10; ++step) {  // the usual factor fades to 0.8 * 0.9^10
    clips.begin_step();
    clips.add_clip(0.1);
  }
  EXPECT_NEAR(clips.usual_factor(), 0.279, 0.001);
  EXPECT_FALSE(is_burst_next(0.15));
  clips.restore(1, 0);
  EXPECT_TRUE(is_burst_next(0.15));
}

TEST(ClipHistory, SeveralClipsOfAStepAreOne) {
  ClipHistory clips;
  for (int step = 0; step < 5; ++step) {
    for (const double factor : {1.0, 0.02, 1.0}) {  // as where the norm is also taken for a log
      clips.count_bucket();
      EXPECT_FALSE(clips.add_clip(factor).is_of_burst) << step;
    }
    EXPECT_DOUBLE_EQ(clips.usual_factor(), 0.02);
    clips.begin_step();
  }
  EXPECT_FALSE(clips.add_clip(0.1).is_of_burst);
  EXPECT_TRUE(clips.add_clip(0.05).is_of_burst) << "0.1 * 0.05 is less than half of 0.02";
}

TEST(ClipHistory, StepsWithBucketsAreCountedOnce) {
  ClipHistory clips;
  for (int step = 0; step < 3; ++step) {
    clips.begin_step();
    clips.count_bucket();
    clips.count_bucket();
  }
  clips.begin_step();  // without a bucket
  EXPECT_EQ(clips.add_clip(1).steps, 3U);
  EXPECT_EQ(clips.add_clip(1).steps, 3U) << "it is the same clip";
  clips.begin_step();
  EXPECT_EQ(clips.add_clip(1).steps, 0U);
}

TEST(ClipHistory, AStepOfWhichNothingWasUsedDoesNotCount) {
  ClipHistory clips;
  clips.begin_step();
  clips.count_bucket();
  clips.begin_step();
  clips.count_bucket();
  clips.forget_step();
  clips.forget_step();  // it is forgotten already
  EXPECT_EQ(clips.begin_count(), 1U);
  clips.forget_step();  // it is not counted any more
  EXPECT_EQ(clips.begin_count(), 0U);
}

}  // namespace

}  // namespace octavo
