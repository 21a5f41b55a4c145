// SPDX-License-Identifier: Apache-2.0
#include "octavo/comm/plan.h"

#include <gtest/gtest.h>

#include "octavo/kernels/error.h"

namespace octavo {

namespace {

TEST(Plan, TextsRoundTrip) {
  for (const char* text :
       {"dense", "bf16", "bf16+ef", "int4", "int4+ef", "sign", "sign+ef", "sign:1024+ef", "sign-vote",
        "int8:stochastic", "int4:128:stochastic+ef", "fp8-e5m2+ef", "ternary:1024+ef"}) {
    EXPECT_EQ(Plan::parse(text).text(), text);
  }
  EXPECT_EQ(Plan::parse("sign:256+ef").text(), "sign+ef");
}

TEST(Plan, EveryBlockCodecIsAPlanByItsName) {
  for (const BlockCodec codec : all_block_codecs()) {
    const std::string name = codec == BlockCodec::fp32 ? "dense" : traits(codec).name;
    EXPECT_EQ(Plan::parse(name).codec, codec) << name;
    EXPECT_EQ(Plan::parse(name).text(), name);
  }
}

TEST(Plan, WhatMakesNoSenseIsRefusedWithWhatWould) {
  for (const char* text :
       {"", "1bit", "sign+", "sign+ef21", "dense+ef", "sign-vote+ef", "sign-vote:64", "sign:0", "sign:-8", "sign:7",
        "sign:x", "sign:", "sign:stochastic", "fp8:stochastic", "int4:stochastic:x", "int8:64:128",
        "int8:stochastic:64", "bf16:256", "int4:99999999999999999999"}) {
    try {
      Plan::parse(text);
      ADD_FAILURE() << text << " was accepted";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
      EXPECT_NE(std::string(error.what()).find("sign+ef"), std::string::npos) << error.what();
    }
  }
}

TEST(Plan, MomentumTakesWideBlocksUnlessABlockWasChosen) {
  EXPECT_EQ(Plan::parse("sign+ef").for_momentum().block, 1U << 18);
  EXPECT_EQ(Plan::parse("sign:512+ef").for_momentum().block, 512U);
  EXPECT_EQ(Plan::parse("int4+ef").for_momentum().block, 64U);
}

}  // namespace

}  // namespace octavo
