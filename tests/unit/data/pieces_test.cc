// Text as the pieces of a model that the test trains, against SentencePiece itself.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sentencepiece_processor.h>
#include <sentencepiece_trainer.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "tests/unit/data/dataset_under_test.h"

namespace engine {
namespace {

class Pieces : public test::DatasetTest {
 protected:
  Pieces() : DatasetTest("text") {
    std::mt19937 random(5);
    const std::vector<std::string> words = {"ships", "sail",   "to",   "the",
                                            "north", "wörter", "sails"};
    for (int i = 0; i < 3000; ++i) text_ += words[random() % words.size()] + (i % 9 ? " " : "\n");
    options_["path"] = folder_.Write("text.txt", text_);
    options_["sentencepiece"] = folder_ / "m.model";
    options_["context"] = "8";
    options_["holdout"] = "0.2";
  }
  void SetUp() override {
    const auto trained = sentencepiece::SentencePieceTrainer::Train(
        "--input=" + options_["path"] + " --model_prefix=" + (folder_ / "m") +
        " --vocab_size=40 --model_type=bpe --minloglevel=2");
    ASSERT_TRUE(trained.ok()) << trained.ToString();
  }

  std::string text_;
};

TEST_F(Pieces, AreThoseOfTheLibrary) {
  sentencepiece::SentencePieceProcessor model;
  ASSERT_TRUE(model.Load(options_["sentencepiece"]).ok());
  const test::OpenedDataset opened = Open();
  EXPECT_EQ(opened.train->input().classes, model.GetPieceSize());
  EXPECT_EQ(opened.train->input().content, TensorContent::kNumbers);
  // The held-out end is split as a text of its own.
  std::vector<int> expected;
  const size_t cut =
      text_.size() - static_cast<size_t>(std::lround(0.2 * static_cast<double>(text_.size())));
  ASSERT_TRUE(model.Encode(text_.substr(cut), &expected).ok());
  constexpr int64_t kContext = 8;
  EXPECT_EQ(opened.eval->size(), (static_cast<int64_t>(expected.size()) - 1) / kContext);
  for (int64_t i = 0; i < opened.eval->size(); ++i) {
    const std::vector<int32_t> sample = test::TokensOf(*opened.eval, 0, i);
    ASSERT_TRUE(std::equal(sample.begin(), sample.end(), expected.begin() + i * kContext)) << i;
  }
  EXPECT_LT(opened.train->size() * kContext, static_cast<int64_t>(cut) / 2) << "pieces, not bytes";
}

TEST_F(Pieces, WhatIsNoModel) {
  options_["sentencepiece"] = options_["path"];
  ExpectError(StatusCode::kBadData, HasSubstr("text.txt: not a model of SentencePiece"));
  options_["sentencepiece"] = folder_ / "none";
  ExpectError(StatusCode::kMissingInput, HasSubstr("none"));
}

}  // namespace
}  // namespace engine
