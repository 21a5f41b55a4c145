// SPDX-License-Identifier: Apache-2.0
#include "octavo/comm/clip_history.h"

#include <gtest/gtest.h>

namespace octavo {

namespace {

TEST(ClipHistory, AClipIsABurstWhereItIsLessThanHalfOfTheUsualOne) {
  ClipHistory clips;
  EXPECT_FALSE(clips.is_burst(0.001)) << "a first clip is no burst";
  clips.add_clip(0.8);
  EXPECT_FALSE(clips.is_burst(0.41));
  EXPECT_TRUE(clips.is_burst(0.39));
  for (int call = 0; call < 10; ++call) clips.add_clip(0.1);  // the usual factor fades to 0.8 * 0.9^10
  EXPECT_NEAR(clips.usual_factor(), 0.279, 0.001);
  EXPECT_FALSE(clips.is_burst(0.15));
  clips.restore(1, 0);
  EXPECT_TRUE(clips.is_burst(0.15));
}

TEST(ClipHistory, StepsWithBucketsAreCountedOnce) {
  ClipHistory clips;
  for (int step = 0; step < 3; ++step) {
    clips.begin_step();
    clips.count_bucket();
    clips.count_bucket();
  }
  clips.begin_step();  // without a bucket
  EXPECT_EQ(clips.add_clip(1), 3U);
  EXPECT_EQ(clips.add_clip(1), 0U);
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
