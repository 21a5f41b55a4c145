// SPDX-License-Identifier: Apache-2.0
#include "octavo/comm/plan.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "octavo/codec/block_coding.h"
#include "octavo/codec/registry.h"
#include "octavo/comm/all_reduce.h"
#include "octavo/kernels/error.h"
#include "tests/cpp/ranks.h"
#include "tests/cpp/refusal.h"

namespace octavo {

namespace {

TEST(Plan, TextsRoundTrip) {
  for (const char* text : {"dense",
                           "bf16",
                           "bf16+ef",
                           "int4",
                           "int4+ef",
                           "sign",
                           "sign+ef",
                           "sign:1024+ef",
                           "sign-vote",
                           "int8:stochastic",
                           "int4:128:stochastic+ef",
                           "fp8-e5m2+ef",
                           "ternary:1024+ef",
                           "topk:0.01",
                           "topk:0.001:bf16+ef",
                           "topk:64/4096",
                           "topk:64/4096:sign2+ef",
                           "randomk:1/100+ef",
                           "topk:0.001+ef+warmup:200",
                           "topk:64/4096:sign+ef:0.95",
                           "topk:64/4096:sign+ef:0.95+hits",
                           "sign+ef:8bit",
                           "sign+down:dense+ef:8bit",
                           "topk:64/4096:sign+ef:0.95:8bit+hits",
                           "topk:0.01+hits+warmup:9",
                           "threshold:10:sign+ef+hits",
                           "randomk:1/10:unbiased+hits;a=int4",
                           "topk:0.01+down:int8+ef+hits",
                           "int4+down:int8+ef:0.5;a=topk:0.01+ef:0.9+warmup:7",
                           "randomk:1/10:unbiased:bf16",
                           "int4+ef21",
                           "randomk:1/10:unbiased+ef21",
                           "topk:0.01+econtrol",
                           "sign+econtrol:0.5",
                           "lsh:int4+ef21",
                           "lsh:0.4:topk:0.01:sign+econtrol:0.5",
                           "int4+down:lsh:int8+ef21",
                           "int4+loco",
                           "int4:128+loco:0.5",
                           "sign+loco:0.8:512",
                           "topk:0.001+dgc",
                           "topk:0.001+dgc:0.5+clip:2.5+warmup:9",
                           "topk:0.1+dgc;a=dense+dgc",
                           "int4+ef;lm_head.*=int8+ef;*embed*=dense",
                           "int4+down:int8+ef",
                           "dense+down:int8:128:stochastic+ef",
                           "sign+down:dense+ef",
                           "topk:64/4096:sign+down:topk:0.01:int8+ef21",
                           "topk:0.01+down:int8+dgc+warmup:9",
                           "randomk:1/10:unbiased+down:bf16;a=int4+down:fp8",
                           "dense;a=topk:0.01+ef+warmup:7",
                           "auto",
                           "auto:bf16",
                           "auto:int8",
                           "auto:sign;lm_head.*=dense;a=int8+ef"}) {
    EXPECT_EQ(Plan::parse(text).text(), text);
  }
  EXPECT_EQ(Plan::parse("sign:256+ef").text(), "sign+ef");
  EXPECT_EQ(Plan::parse("sign+ef:1").text(), "sign+ef");
  EXPECT_EQ(Plan::parse("sign+ef:1:8bit").text(), "sign+ef:8bit");
  EXPECT_EQ(Plan::parse("topk:0.01+hits+warmup:3+ef").text(), "topk:0.01+ef+hits+warmup:3");
  EXPECT_EQ(Plan::parse("delta+int4:128").text(), "int4:128+ef21");
  EXPECT_EQ(Plan::parse("delta+topk:0.01+warmup:3").text(), "topk:0.01+ef21+warmup:3");
  EXPECT_EQ(Plan::parse("lsh:0.10:int4").text(), "lsh:int4+ef21");
  EXPECT_EQ(Plan::parse("delta+lsh:0.2:topk:0.01+warmup:3").text(), "lsh:0.2:topk:0.01+ef21+warmup:3");
  EXPECT_EQ(Plan::parse("int8+down:lsh:int4").text(), "int8+down:lsh:int4+ef21");
  EXPECT_EQ(Plan::parse("dgc:0.001+warmup:3").text(), "topk:0.001+dgc+warmup:3");
  EXPECT_EQ(Plan::parse("dgc:64/4096:sign").text(), "topk:64/4096:sign+dgc");
  EXPECT_EQ(Plan::parse("randomk:0.01").text(), "randomk:1/100");
  EXPECT_EQ(Plan::parse("auto:int4").text(), "auto");
  EXPECT_EQ(Plan::parse("int4+ef+down:int8").text(), "int4+down:int8+ef");
  EXPECT_EQ(Plan::parse("delta+int4+down:int8").text(), "int4+down:int8+ef21");
  EXPECT_EQ(Plan::parse("dgc:0.01+warmup:9+down:int8").text(), "topk:0.01+down:int8+dgc+warmup:9");
  EXPECT_EQ(Plan::parse("int4+down:int4:64+ef").text(), "int4+ef");
  EXPECT_EQ(Plan::parse("randomk:0.1:unbiased+down:randomk:1/10:unbiased").text(), "randomk:1/10:unbiased");
}

TEST(Plan, AutoChoosesFromWhatItsTextAllows) {
  const auto choices = [](const char* text) {
    std::string all;
    const Plan automatic = Plan::parse(text);
    for (const ParameterPlan& plan : *automatic.general.choices) all += plan.text() + " ";
    return all;
  };
  EXPECT_EQ(choices("auto"), "dense bf16 int8+ef int4+ef ");
  EXPECT_EQ(choices("auto:bf16"), "dense bf16 ");
  EXPECT_EQ(choices("auto:sign"), "dense bf16 int8+ef int4+ef sign+ef ");
  EXPECT_EQ(Plan::parse("int4+ef").general.choices, nullptr);
  EXPECT_EQ(Plan::parse("auto;a=bf16").of("a").text(), "bf16");
  EXPECT_FALSE(Plan::parse("auto").dense());
  thread_ranks::run_ranks(1, [](const thread_ranks::BackendPtr& backend, int) {
    at::Tensor values = at::ones({8});
    try {
      all_reduce(values, Plan::parse("auto"), backend, ReduceOp::average, std::chrono::seconds(20));
      ADD_FAILURE() << "a single call measured nothing";
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("octavo.compress"), std::string::npos) << error.what();
    }
  });
}

TEST(Plan, EveryBlockCodecIsAPlanByItsName) {
  for (const BlockCodec codec : all_block_codecs()) {
    const std::string name = plan_name(codec);
    EXPECT_EQ(Plan::parse(name).general.codec->fingerprint(), block_coding(codec).fingerprint()) << name;
    EXPECT_EQ(Plan::parse(name).text(), name);
  }
}

std::string refusal_of_plan(const std::string& text) {
  return refusal_of([&] { Plan::parse(text); });
}

/// Expects that each of the texts is refused with a sentence that begins with `words`, and with examples of plans.
void expect_no_plan(const std::string& words, const std::vector<std::string>& texts) {
  for (const std::string& text : texts) {
    const std::string said = refusal_of_plan(text);
    EXPECT_TRUE(said.starts_with("[comm.plan] '" + text + "' is no plan: " + words)) << text << ": " << said;
    EXPECT_NE(said.find("Plans are for example int4+ef"), std::string::npos) << said;
  }
}

TEST(PlanRefusals, Codec) { expect_no_plan("there is no codec of this name", {"", "1bit"}); }

TEST(PlanRefusals, Parts) {
  expect_no_plan("after the codec there may be +down:CODEC", {"sign+", "sign+ef14", "topk:0.01+ef+"});
}

TEST(PlanRefusals, Block) {
  expect_no_plan("this codec has no blocks", {"sign-vote:64", "bf16:256"});
  expect_no_plan("a block is a multiple of 8 from 8 to 16777216",
                 {"sign:0", "sign:-8", "sign:7", "sign:x", "sign:", "int4:99999999999999999999"});
  expect_no_plan("its block comes first, and once", {"int4:stochastic:x", "int8:64:128", "int8:stochastic:64"});
  expect_no_plan("only int2 to int8 round stochastically", {"sign:stochastic", "fp8:stochastic"});
}

TEST(PlanRefusals, TopK) {
  expect_no_plan("topk needs a share of the values, as in topk:0.01, or tiles, as in topk:64/4096",
                 {"topk", "topk:0.01:sign:64"});
  expect_no_plan("topk keeps a share of the values above 0 and at most 1, as in topk:0.01",
                 {"topk:", "topk:0", "topk:1.5", "topk:nan"});
  expect_no_plan("a tile is a multiple of 64 up to 1048576, of which a multiple of 8 values is kept",
                 {"topk:7/4096", "topk:8/100", "topk:128/64", "topk:8/2097152"});
  expect_no_plan("there is no such codec for the values", {"topk:0.01:x", "topk:0.01:sign-vote", "topk:0.01:topk"});
}

TEST(PlanRefusals, RandomK) {
  expect_no_plan("randomk needs a share of the values from 0.000001 to 0.5, as in randomk:0.01 or randomk:1/100",
                 {"randomk", "randomk:0.6", "randomk:0", "randomk:1/1", "randomk:1/2000000"});
  expect_no_plan("there is no such codec for the values", {"randomk:0.1:x"});
  expect_no_plan("after the codec of the values nothing follows", {"randomk:0.1:bf16:unbiased"});
}

TEST(PlanRefusals, ErrorFeedback) {
  expect_no_plan(
      "+ef takes a decay above 0, at most 1, as in topk:64/4096:sign+ef:0.95, and after it 8bit, as in int4+ef:8bit",
      {"sign+ef:0", "sign+ef:-0.5", "sign+ef:1.5", "sign+ef:nan", "sign+ef:x", "sign+ef:", "sign+ef:0.5:0.5",
       "sign+ef:8", "sign+ef:4bit", "sign+ef:8bit:0.5", "sign+ef:8bit:8bit"});
  expect_no_plan("this codec leaves no error that could be fed back",
                 {"dense+ef", "dense+ef:8bit", "dense+ef:0.5", "sign-vote+ef", "randomk:0.1:unbiased+ef"});
  expect_no_plan("what a linear map leaves over is kept in bfloat16: leave 8bit out, as in powersgd:4+ef",
                 {"powersgd:4+ef:8bit"});
  expect_no_plan("what a linear map leaves over does not decay: leave the decay out, as in powersgd:4+ef",
                 {"powersgd:4+ef:0.5"});
  expect_no_plan("it has two kinds of feedback, and there is one at most", {"topk:0.01+ef+ef"});
}

TEST(PlanRefusals, FeedbackThatAddsToTheValuesOfAThreshold) {
  expect_no_plan(
      "threshold:3 measures values without what is owed, which this feedback adds to them: use threshold:3+ef",
      {"threshold:3+ef:8bit", "threshold:3+ef:0.9:8bit", "threshold:3+loco", "int4+down:threshold:3+loco",
       "threshold:3+econtrol"});
}

TEST(PlanRefusals, Hits) {
  expect_no_plan(
      "+hits divides each sum by the number of ranks that sent a value there, and all ranks send all values of this",
      {"int4+hits", "dense+hits", "sign-vote+hits", "int4+down:topk:0.01+hits", "powersgd:4+hits",
       "sketch:0.1+ef+hits"});
  expect_no_plan("+hits encodes what a rank owns itself, too, and +ef alone keeps what that leaves out",
                 {"dgc:0.01+hits", "delta+topk:0.01+hits", "topk:0.01+econtrol+hits", "topk:0.01+loco+hits"});
  expect_no_plan("it has two +hits", {"topk:0.01+hits+hits"});
  expect_no_plan("after the codec there may be +down:CODEC", {"topk:0.01+hits:1"});
}

TEST(PlanRefusals, Ef21) {
  expect_no_plan("+ef21 takes no options", {"sign+ef21:1"});
  expect_no_plan("this codec leaves no error that could be made up", {"dense+ef21"});
  expect_no_plan("votes have no magnitude, which differences need", {"sign-vote+ef21"});
  expect_no_plan("it has two kinds of feedback, and there is one at most", {"int4+ef+ef21", "delta+int4+ef"});
  expect_no_plan("it needs a codec, as in delta+int4", {"delta", "delta+delta+int4"});
  expect_no_plan("there is no codec of this name", {"delta+"});
  expect_no_plan("a linear map takes only +ef, and a sketch also +fetchsgd", {"powersgd:4+ef21", "delta+powersgd:4"});
}

TEST(PlanRefusals, EControl) {
  expect_no_plan("econtrol takes a part above 0, at most 1, as in int4+econtrol:0.1",
                 {"int4+econtrol:0", "int4+econtrol:1.5", "int4+econtrol:0.1:0.1"});
  expect_no_plan("this codec leaves no error that could be made up", {"dense+econtrol"});
  expect_no_plan("votes have no magnitude, which differences need", {"sign-vote+econtrol"});
  expect_no_plan("econtrol accumulates what is not sent: leave :unbiased out", {"randomk:0.1:unbiased+econtrol"});
  expect_no_plan("a linear map takes only +ef, and a sketch also +fetchsgd", {"powersgd:4+econtrol"});
}

TEST(PlanRefusals, FetchSgd) {
  expect_no_plan("fetchsgd takes a momentum of at least 0 and below 1, as in sketch:0.1+fetchsgd:0.9",
                 {"sketch:0.1+fetchsgd:1", "sketch:0.1+fetchsgd:0.9:1"});
  expect_no_plan("fetchsgd keeps its momentum in a sketch, as in sketch:0.1+fetchsgd: of a codec take dgc",
                 {"int4+fetchsgd"});
  expect_no_plan("fetchsgd keeps its momentum in a sketch of estimates, as in sketch:0.1+fetchsgd",
                 {"powersgd:4+fetchsgd", "sketch:0.1:exact+fetchsgd"});
  expect_no_plan("the momentum of all parameters is either the plan's or the optimizer's",
                 {"sketch:0.1+fetchsgd;a=int4"});
}

TEST(PlanRefusals, Lsh) {
  expect_no_plan(
      "lsh compares values with what receivers took for them before, of which +ef21 and +econtrol keep an estimate",
      {"lsh:int4+ef", "lsh:int4+loco", "lsh:topk:0.01+dgc", "int4+down:lsh:int4+ef"});
  expect_no_plan("votes have no magnitude, which differences need", {"lsh:sign-vote"});
  expect_no_plan("in the place of powersgd there must be a codec, such as int8", {"lsh:powersgd:4"});
}

TEST(PlanRefusals, Loco) {
  expect_no_plan("loco takes a share of the past of at least 0 and below 1, and after how many steps it begins anew",
                 {"int4+loco:1", "int4+loco:-0.1", "int4+loco:0.8:0", "int4+loco:0.8:1:1"});
  expect_no_plan("this codec leaves no error that could be fed back", {"dense+loco"});
  expect_no_plan("a linear map takes only +ef, and a sketch also +fetchsgd", {"sketch:0.1+loco"});
  expect_no_plan("it has two kinds of feedback, and there is one at most", {"int4+ef+loco"});
}

TEST(PlanRefusals, Dgc) {
  expect_no_plan("it needs a share of the values, as in dgc:0.001", {"dgc"});
  expect_no_plan("topk keeps a share of the values above 0 and at most 1, as in topk:0.01", {"dgc:", "dgc:2"});
  expect_no_plan("dgc takes a momentum of at least 0 and below 1, as in topk:0.001+dgc:0.9",
                 {"int4+dgc:1", "int4+dgc:-0.1", "int4+dgc:nan", "int4+dgc:0.9:1"});
  expect_no_plan("dgc accumulates what is not sent, and votes have no magnitude", {"sign-vote+dgc"});
  expect_no_plan("dgc accumulates what is not sent: leave :unbiased out",
                 {"randomk:0.1:unbiased+dgc", "randomk:0.1:unbiased+down:int8+dgc"});
  expect_no_plan("it has two kinds of feedback, and there is one at most", {"dgc:0.01+ef", "powersgd:4+ef+dgc"});
  expect_no_plan("the momentum of all parameters is either the plan's or the optimizer's",
                 {"dgc:0.01;a=int4", "int4;a=dgc:0.01"});
  expect_no_plan("a gradient is clipped to a norm above 0, as in dgc:0.001+clip:1",
                 {"dgc:0.01+clip:0", "dgc:0.01+clip:x"});
  expect_no_plan("only dgc clips, once, and +clip follows it",
                 {"int4+ef+clip:1", "int4+clip:1+dgc", "dgc:0.01+clip:1+clip:2"});
}

TEST(PlanRefusals, WarmUp) {
  expect_no_plan("a warm-up has a number of steps", {"topk:0.01+warmup:", "topk:0.01+warmup:0"});
  expect_no_plan("after the codec there may be +down:CODEC", {"topk:0.01+warmup"});
  expect_no_plan("there is nothing that this codec could begin with",
                 {"int4+warmup:10", "topk:0.5+warmup:9", "int4+down:int8+warmup:9"});
  expect_no_plan("it has two warm-ups", {"topk:0.01+warmup:1+warmup:2"});
}

TEST(PlanRefusals, Rules) {
  expect_no_plan("a rule is a pattern of parameters' names and their plan, as in lm_head.*=int8+ef",
                 {"int4;", "int4;x", "int4;=int8"});
  expect_no_plan("there is no codec of this name", {"int4;x=", "int4;x=1bit"});
  expect_no_plan("this codec leaves no error that could be fed back", {"int4;x=dense+ef"});
  expect_no_plan("auto is the plan of all parameters, and rules may say others, as in auto;a.*=bf16", {"int4;x=auto"});
}

TEST(PlanRefusals, Auto) {
  expect_no_plan("auto chooses codecs and error feedback itself, and has no warm-up and no +down",
                 {"auto+ef", "auto+hits", "auto+warmup:9", "auto+down:int8", "auto:int4+ef"});
  expect_no_plan("after auto there may be :bf16, :int8, :int4 (what auto means) or :sign",
                 {"auto:", "auto:dense", "auto:int5", "auto:int8:int4"});
}

TEST(PlanRefusals, Down) {
  expect_no_plan("there is no codec of this name", {"int4+down:", "int4+down:1bit"});
  expect_no_plan("in the place of auto there must be a codec, such as int8",
                 {"int4+down:auto", "auto;a=int4+down:auto"});
  expect_no_plan("in the place of dgc there must be a codec, such as int8", {"int4+down:dgc:0.01", "delta+dgc:0.01"});
  expect_no_plan("after the codec there may be +down:CODEC", {"int4+down"});
  expect_no_plan("it has two codecs for the way down", {"int4+down:int8+down:fp8"});
  expect_no_plan("votes go both ways, up as signs and down as the majority's",
                 {"sign-vote+down:int8", "int4+down:sign-vote"});
  expect_no_plan("the images of a linear map are sent unchanged in both directions",
                 {"powersgd:4+down:int8", "int4+down:powersgd:4", "int4+down:sketch:0.1"});
  expect_no_plan("each of the two ways draws other places, so that most values that are sent up would not be sent down",
                 {"randomk:0.1+down:randomk:0.2"});
  expect_no_plan("this codec leaves no error that could be fed back",
                 {"dense+down:dense+ef", "int4+down:randomk:0.1:unbiased+ef"});
}

TEST(Plan, ARefusalSaysFirstWhatIsWrongAndShowsALongTextInPart) {
  expect_no_plan("there is no codec of this name; there are auto, delta, dgc, dense", {"int9"});
  EXPECT_LT(refusal_of_plan("int4" + std::string(100'000, '+')).size(), 700U);
  std::string of_two_bytes = "a";
  for (int i = 0; i < 150; ++i) of_two_bytes += "\u00e9";
  EXPECT_NE(refusal_of_plan(of_two_bytes).find("\u00e9...' is no plan"), std::string::npos);  // no letter is cut
}

TEST(Plan, TheFirstRuleThatFitsCounts) {
  const Plan plan = Plan::parse("int4+ef;*.norm?.*=bf16;layers.0.*=int8+ef;layers.*=sign-vote");
  EXPECT_EQ(plan.of("layers.0.norm1.weight").text(), "bf16");
  EXPECT_EQ(plan.of("layers.0.mlp.weight").text(), "int8+ef");
  EXPECT_EQ(plan.of("layers.10.mlp.weight").text(), "sign-vote");
  EXPECT_EQ(plan.of("embed.weight").text(), "int4+ef");
  EXPECT_TRUE(plan.votes());
  EXPECT_FALSE(Plan::parse("int4+ef;a=int8").votes());
  EXPECT_EQ(Plan::parse("sign+ef;a=sign+ef").for_momentum().text(), "sign:262144+ef;a=sign:262144+ef");
}

TEST(Plan, AWarmUpGetsSparserStepByStep) {
  const Plan plan = Plan::parse("topk:0.01:bf16+ef+warmup:9");
  std::vector<std::string> codecs;
  for (std::uint64_t step = 0; step <= 11; ++step) codecs.push_back(plan.general.at(step).down->text().substr(5));
  const std::string a = "0.25:bf16", b = "0.0625:bf16", c = "0.015625:bf16", end = "0.01:bf16";
  EXPECT_EQ(codecs, (std::vector{a, a, a, a, b, b, b, c, c, c, end, end}));
  EXPECT_EQ(Plan::parse("topk:64/4096+warmup:2").general.at(2).up->text(), "topk:256/4096");
  EXPECT_EQ(Plan::parse("randomk:1/100+warmup:3").general.at(2).up->text(), "randomk:1/16");
  EXPECT_EQ(Plan::parse("int4+ef").general.at(1).up->text(), "int4");
}

TEST(Plan, TheWaysHaveTheirOwnCodecsAndWarmUps) {
  const auto ways = [](const char* text, std::uint64_t step) {
    const Plan plan = Plan::parse(text);
    return plan.general.at(step).up->text() + " " + plan.general.at(step).down->text() + " " +
           plan.general.kept_at(step).up->text() + " " + plan.general.kept_at(step).down->text();
  };
  EXPECT_EQ(ways("int4+ef", 1), "int4 int4 int4 dense");
  EXPECT_EQ(ways("int4+down:int8+ef", 1), "int4 int8 int4 dense");
  EXPECT_EQ(ways("topk:0.01+down:int8+warmup:2", 1), "topk:0.25 int8 topk:0.25 dense");
  EXPECT_EQ(ways("int8+down:topk:0.1+warmup:4", 4), "int8 topk:0.25 int8 dense");
  EXPECT_EQ(ways("int8+down:topk:0.1+warmup:4", 5), "int8 topk:0.1 int8 dense");
  EXPECT_EQ(ways("sign-vote", 1), "sign-vote sign-vote sign-vote sign-vote");
  // values are weighted once: by the owner, or by the senders where the way down has a codec of its own
  EXPECT_EQ(ways("randomk:1/4:unbiased", 1), "randomk:1/4 randomk:1/4:unbiased randomk:1/4:unbiased dense");
  EXPECT_EQ(ways("randomk:1/4:unbiased+down:int8", 1), "randomk:1/4:unbiased int8 randomk:1/4:unbiased dense");
}

TEST(Plan, OneWayIsNotDenseWhereTheOtherOneIs) {
  EXPECT_FALSE(Plan::parse("dense+down:bf16").dense());
  EXPECT_FALSE(Plan::parse("bf16+down:dense").dense());
  EXPECT_TRUE(Plan::parse("dense+down:dense").dense());
}

TEST(Plan, MomentumTakesWideBlocksUnlessABlockWasChosen) {
  EXPECT_EQ(Plan::parse("sign+ef").for_momentum().text(), "sign:262144+ef");
  EXPECT_EQ(Plan::parse("sign:512+ef").for_momentum().text(), "sign:512+ef");
  EXPECT_EQ(Plan::parse("int4+ef").for_momentum().text(), "int4+ef");
  EXPECT_EQ(Plan::parse("int4+down:sign+ef").for_momentum().text(), "int4+down:sign:262144+ef");
}

TEST(Plan, AMomentumIsAtLeastZeroAndBelowOne) {
  const Plan plan = Plan::parse("dgc:0.01");
  EXPECT_EQ(plan.with_momentum(0.5).momentum(), 0.5);
  for (const double bad : {-0.1, 1.0, std::nan("")}) EXPECT_THROW(plan.with_momentum(bad), Error);
}

TEST(Plan, AnotherDecayIsThatOfAllParametersWithErrorFeedback) {
  const auto decayed = [](const char* text, double decay) { return Plan::parse(text).with_decay(decay).text(); };
  EXPECT_EQ(decayed("int4+ef", 0.95), "int4+ef:0.95");
  EXPECT_EQ(decayed("int4+ef:0.5", 1), "int4+ef");
  EXPECT_EQ(decayed("int4+ef:8bit", 0.5), "int4+ef:0.5:8bit");
  EXPECT_EQ(decayed("bf16;a=topk:0.01+ef;b=int4+ef:0.9;c=int4+loco", 0.5),
            "bf16;a=topk:0.01+ef:0.5;b=int4+ef:0.5;c=int4+loco");
  const auto refusal = [&](const char* text, double decay) { return refusal_of([&] { decayed(text, decay); }); };
  for (const double decay : {0.0, 1.5, -0.1, std::nan("")}) {
    EXPECT_NE(refusal("int4+ef", decay).find("above 0 and at most 1"), std::string::npos) << decay;
  }
  for (const char* text : {"int4", "dgc:0.01", "delta+int4", "powersgd:4+ef", "auto", "dense;a=bf16"}) {
    EXPECT_NE(refusal(text, 0.9).find("decay needs error feedback such as"), std::string::npos) << text;
  }
}

TEST(Plan, AnAverageOverHitsIsThatOfAllParametersThatLeaveMostUnsent) {
  const auto over_hits = [](const char* text) { return Plan::parse(text).averaged_over_hits().text(); };
  EXPECT_EQ(over_hits("topk:0.01+ef"), "topk:0.01+ef+hits");
  EXPECT_EQ(over_hits("topk:0.01+hits"), "topk:0.01+hits");
  EXPECT_EQ(over_hits("int4;a=randomk:1/10;b=threshold:3+ef:0.9;c=topk:0.1+loco"),
            "int4;a=randomk:1/10+hits;b=threshold:3+ef:0.9+hits;c=topk:0.1+loco");
  for (const char* text : {"int4+ef", "sign-vote", "dgc:0.01", "sketch:0.1+ef", "auto", "dense;a=bf16"}) {
    const std::string said = refusal_of([&] { over_hits(text); });
    EXPECT_NE(said.find("an average over hits needs a codec"), std::string::npos) << text << ": " << said;
  }
}

/// Halves what is sent; the payload is the halved values.
class Halving final : public Codec {
 public:
  explicit Halving(std::uint64_t times) : Codec("test-halving:" + std::to_string(times), {}), times_(times) {}
  std::uint64_t payload_bytes(std::uint64_t count) const override { return count * sizeof(float); }
  void encode(c10::Device, const EncodeInput& input, const PayloadPart& to, rules::Residual*) const override {
    auto* const sent = reinterpret_cast<float*>(to.payload);
    for (std::uint64_t i = 0; i < to.part.count; ++i) {
      sent[i] = value_at(input, i) / static_cast<float>(1U << times_);
    }
  }
  void decode(c10::Device, const PayloadPart& from, Store how, float* out, std::uint32_t*) const override {
    const auto* const sent = reinterpret_cast<const float*>(from.payload);
    for (std::uint64_t i = 0; i < from.part.count; ++i) store(how, sent[i], out[i]);
  }

 private:
  std::uint64_t times_;
};

TEST(Plan, ARegisteredCodecIsAPlanByItsName) {
  const CodecFactory factory = [](const CodecText& text) -> CodecPtr {
    if (text.options.size() != 1) text.refuse("test-halving needs a number of times");
    return std::make_shared<Halving>(text.whole_number(text.options[0], 1, 8, "from 1 to 8 times"));
  };
  register_codec("test-halving", factory);
  EXPECT_EQ(Plan::parse("test-halving:2+ef").text(), "test-halving:2+ef");
  EXPECT_THROW(Plan::parse("test-halving:9"), Error);
  EXPECT_THROW(Plan::parse("test-halving"), Error);
  for (const char* name : {"int4", "topk", "auto", "", "a:b"}) EXPECT_THROW(register_codec(name, factory), Error);
  const auto names = codec_names();
  register_codec("test-halving", factory);  // as of a library that was built and loaded again
  EXPECT_EQ(codec_names(), names);

  thread_ranks::run_ranks(2, [](const thread_ranks::BackendPtr& backend, int rank) {
    at::Tensor values = at::full({1000}, rank == 0 ? 1.0F : 3.0F);
    all_reduce(values, Plan::parse("test-halving:1"), backend, ReduceOp::average, std::chrono::seconds(20));
    // an owner does not halve its own values; their average with what the owner received is halved again
    EXPECT_EQ(values[0].item<float>(), (1.0F + 1.5F) / 4);
    EXPECT_EQ(values[999].item<float>(), (3.0F + 0.5F) / 4);
  });
}

}  // namespace

}  // namespace octavo
