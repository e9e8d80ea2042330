#include "app/run/generate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "tests/support/expect_status.h"
#include "tests/unit/train/single_rank.h"

namespace engine::test {
namespace {

constexpr int64_t kContext = 8;
const std::string kPlugins =
    "train { steps: 1 global_batch: 1 } plugins: [\"null\", \"fifo_sched\", \"sgd\", "
    "\"cpu_ops\"]\n";

class GenerateTest : public ::testing::Test {
 protected:
  void SetUp() override {
    rank_ =
        ValueOf(SingleRank::Make("seed: 5 model { gpt { layers: 1 width: 16 heads: 2 } } data { "
                                 "text { path: \"none\" } }\n" +
                                 kPlugins));
    model_ = ValueOf(rank_->MakeModel({.input_shape = {kContext},
                                       .input_dtype = DType::kInt32,
                                       .target_shape = {kContext},
                                       .classes = 256}));
    ASSERT_THAT(model_->InitializeParameters(), IsOk());
    // Large enough that the text before a byte matters to it.
    for (int64_t i = 0; i < model_->layout().total_count; ++i) model_->parameters()[i] *= 8;
  }

  std::string Text(const std::string& prompt, const run::GenerateOptions& options) {
    return ValueOf(run::Generate(*model_, prompt, options));
  }

  std::unique_ptr<SingleRank> rank_;
  std::unique_ptr<exec::ModelMemory> model_;
};

TEST_F(GenerateTest, TheSameSeedGivesTheSameText) {
  const std::string first = Text("abc", {.count = 30, .seed = 7});
  EXPECT_EQ(first.size(), 30u);
  EXPECT_EQ(Text("abc", {.count = 30, .seed = 7}), first);
  EXPECT_NE(Text("abc", {.count = 30, .seed = 8}), first);
  EXPECT_NE(Text("abd", {.count = 30, .seed = 7}), first);
}

TEST_F(GenerateTest, OnlyTheLastBytesOfALongPromptCount) {
  const std::string end = "12345678";
  ASSERT_EQ(end.size(), static_cast<size_t>(kContext));
  const std::string expected = Text(end, {.count = 20});
  EXPECT_EQ(Text("something long before " + end, {.count = 20}), expected);
  EXPECT_NE(Text("abcdefg8", {.count = 20}), expected);
}

TEST_F(GenerateTest, AnEmptyPromptIsANewline) {
  EXPECT_EQ(Text("", {.count = 20}), Text("\n", {.count = 20}));
}

TEST_F(GenerateTest, WithoutTemperatureOrWithOneChoiceTheSeedIsOfNoUse) {
  const std::string likeliest = Text("abc", {.count = 20, .temperature = 0, .seed = 1});
  EXPECT_EQ(Text("abc", {.count = 20, .temperature = 0, .seed = 2}), likeliest);
  EXPECT_EQ(Text("abc", {.count = 20, .temperature = 1, .top_k = 1, .seed = 3}), likeliest);
}

TEST_F(GenerateTest, APromptIsContinuedByteByByte) {
  const std::string whole = Text("abc", {.count = 12, .temperature = 0});
  EXPECT_EQ(Text("abc" + whole.substr(0, 5), {.count = 7, .temperature = 0}), whole.substr(5));
}

TEST_F(GenerateTest, TokensAreContinuedLikeBytes) {
  std::vector<int32_t> tokens = {'a', 'b', 'c'};
  ASSERT_THAT(run::GenerateTokens(*model_, {.count = 12, .temperature = 0}, &tokens), IsOk());
  EXPECT_EQ(std::string(tokens.begin(), tokens.end()),
            "abc" + Text("abc", {.count = 12, .temperature = 0}));
  tokens = {256};
  EXPECT_THAT(run::GenerateTokens(*model_, {}, &tokens), FailsWith(StatusCode::kConfig));
}

TEST_F(GenerateTest, AModelThatReadsNoTextIsRefused) {
  const auto rank =
      ValueOf(SingleRank::Make("model { mlp { hidden: [4] } } data { synthetic {} }\n" + kPlugins));
  const auto model =
      ValueOf(rank->MakeModel({.input_shape = {3}, .target_shape = {}, .classes = 256}));
  EXPECT_THAT(run::Generate(*model, "abc", {}), FailsWith(StatusCode::kConfig));
}

}  // namespace
}  // namespace engine::test
