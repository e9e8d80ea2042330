#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "plugins/tokens/token_file.h"
#include "tests/support/expect_status.h"
#include "tests/unit/data/dataset_under_test.h"
#include "tests/unit/data/token_bytes.h"

namespace engine {
namespace {

using test::Counting;
using test::OpenedDataset;
using test::TokenBytes;
using test::TokenHeader;
using test::TokensOf;
using tokens::OpenTokens;

class Tokens : public test::DatasetTest {
 protected:
  Tokens() : DatasetTest("tokens") { options_["context"] = "4"; }

  // Of a file with this content.
  std::string Refusal(const std::string& content) {
    const std::string path = folder_.Write("some.bin", content);
    const Status status = OpenTokens(path, tokens::Format::kGuess).status();
    EXPECT_EQ(status.code(), StatusCode::kBadData);
    EXPECT_THAT(status.message(), ::testing::StartsWith(path + ": "));
    return status.message();
  }
};

TEST_F(Tokens, OfAFolderByTheWordsInNames) {
  folder_.Write("set_train_000002.bin", TokenBytes(Counting(200, 13)));
  folder_.Write("set_train_000001.bin", TokenBytes(Counting(100, 12)));
  folder_.Write("train_000003.bin", TokenBytes(Counting(300, 7)));  // less than two samples
  folder_.Write("set_val_000000.bin", TokenBytes(Counting(50000, 9)));
  for (const char* other : {"set_train.bin.part", ".x_train.bin", "valid.bin", "train.txt"}) {
    folder_.Write(other, "something else");
  }
  options_["path"] = folder_.path();
  const OpenedDataset pair = Open();
  for (const SampleTensor& tensor : {pair.train->input(), pair.train->target()}) {
    EXPECT_EQ(tensor.classes, 50257);
    EXPECT_EQ(tensor.dtype, DType::kInt32);
    EXPECT_TRUE(tensor.shape == Shape{4});
  }
  ASSERT_EQ(pair.train->size(), 2 + 2);
  for (uint64_t epoch = 0; epoch < 20; ++epoch) {
    const int offset = TokensOf(*pair.train, epoch, 0)[0] - 100;
    ASSERT_TRUE(offset >= 0 && offset < 4) << offset;
    for (int64_t i = 0; i < 4; ++i) {
      const int begin = (i < 2 ? 100 : 200) + static_cast<int>(i % 2) * 4 + offset;
      EXPECT_EQ(TokensOf(*pair.train, epoch, i),
                (std::vector<int32_t>{begin, begin + 1, begin + 2, begin + 3, begin + 4}));
    }
  }
  ASSERT_EQ(pair.eval->size(), 2);
  EXPECT_THAT(TokensOf(*pair.eval, 0, 0), ElementsAre(50000, 50001, 50002, 50003, 50004));
  EXPECT_THAT(TokensOf(*pair.eval, 7, 1), ElementsAre(50004, 50005, 50006, 50007, 50008));
}

TEST_F(Tokens, OfOneFileTheEndIsHeldOut) {
  options_["path"] = folder_.Write("x.bin", TokenBytes(Counting(0, 40)));
  options_["holdout"] = "0.25";
  const OpenedDataset pair = Open();
  EXPECT_EQ(pair.train->size(), (30 - 4) / 4);
  std::set<int32_t> seen;
  for (uint64_t epoch = 0; epoch < 50; ++epoch) {
    for (int64_t i = 0; i < pair.train->size(); ++i) {
      for (const int32_t token : TokensOf(*pair.train, epoch, i)) seen.insert(token);
    }
  }
  EXPECT_EQ(*seen.rbegin(), 27) << "the last one that fits at the largest offset";
  ASSERT_EQ(pair.eval->size(), 2);
  EXPECT_THAT(TokensOf(*pair.eval, 0, 0), ElementsAre(30, 31, 32, 33, 34));

  options_["holdout"] = "0";
  EXPECT_EQ(Open().eval->size(), 0);
  options_["eval_path"] = folder_.Write("y.bin", TokenBytes(Counting(7, 5)));
  const OpenedDataset with_file = Open();
  EXPECT_EQ(with_file.train->size(), (40 - 4) / 4);
  ASSERT_EQ(with_file.eval->size(), 1);
  EXPECT_THAT(TokensOf(*with_file.eval, 0, 0), ElementsAre(7, 8, 9, 10, 11));
}

TEST_F(Tokens, HeadersAreChecked) {
  EXPECT_THAT(Refusal(TokenHeader(0).substr(0, 1023)), HasSubstr("1023 bytes are too few"));
  EXPECT_THAT(Refusal(TokenHeader(1, 20240801, 7) + "ab"), HasSubstr("announces 1 tokens"));
  EXPECT_THAT(Refusal(TokenHeader(1, 20240801, 1) + "abcd"), HasSubstr("version 1"));
  EXPECT_THAT(Refusal(TokenHeader(1, 20240522) + "ab"), HasSubstr("multiple-choice"));
  EXPECT_THAT(Refusal(TokenHeader(1, 12345) + "ab"),
              AllOf(HasSubstr("begins with 20240520"), HasSubstr("data.tokens.format")));
  EXPECT_THAT(Refusal(TokenHeader(1, 20240520, 2) + "ab"), HasSubstr("version 2"));
  EXPECT_THAT(Refusal(TokenHeader(3) + "abcd"),
              AllOf(HasSubstr("announces 3 tokens"), HasSubstr("4 bytes follow")));
  EXPECT_THAT(Refusal(TokenHeader(1) + "abcd"), HasSubstr("announces 1 tokens"));
  EXPECT_THAT(Refusal(TokenHeader(-2) + "abcd"), HasSubstr("announces -2 tokens"));
  EXPECT_EQ(OpenTokens(folder_ / "none", tokens::Format::kGuess).status().code(),
            StatusCode::kMissingInput);
  EXPECT_EQ(OpenTokens(folder_.path().native(), tokens::Format::kGuess).status().code(),
            StatusCode::kBadData);
  const auto empty =
      ValueOf(OpenTokens(folder_.Write("empty.bin", TokenHeader(0)), tokens::Format::kGuess));
  EXPECT_EQ(empty.rows(), 0);
}

TEST_F(Tokens, EveryTokenIsCheckedWhenItIsRead) {
  std::vector<int> tokens = Counting(0, 20);
  tokens[13] = 65535;
  options_["path"] = folder_.Write("x.bin", TokenBytes(tokens));
  options_["holdout"] = "0";
  options_["vocabulary"] = "20";
  const OpenedDataset pair = Open();
  std::map<int64_t, std::string> failures;
  std::vector<int32_t> input(4), target(4);
  for (uint64_t epoch = 0; epoch < 50; ++epoch) {
    for (int64_t i = 0; i < pair.train->size(); ++i) {
      const Status got = pair.train->Get(epoch, i, input.data(), target.data());
      const int32_t begin = input[0] == 65535 ? 13 : input[0];
      EXPECT_EQ(got.ok(), begin + 4 < 13 || begin > 13) << begin;
      if (got.ok()) continue;
      EXPECT_EQ(got.code(), StatusCode::kBadData);
      EXPECT_THAT(got.message(),
                  AllOf(HasSubstr(options_["path"] + ": token 13 is 65535"), HasSubstr("0 to 19")));
      failures[begin] = got.message();
    }
  }
  EXPECT_EQ(failures.size(), 5u) << "as an input at each place, and as the last target";
  options_["vocabulary"] = "65536";
  const OpenedDataset all = Open();
  EXPECT_EQ(TokensOf(*all.train, 0, 3).size(), 5u);
}

// The same tokens, beyond 16 bits, in every kind of file.
TEST_F(Tokens, OfThirtyTwoBitsAndOfNumpy) {
  const std::vector<int> tokens = {3, 70000, 2147483645, 1, 2, 9, 8, 7, 6};
  std::string wide, npy, header = "{'descr': '<i8', 'fortran_order': False, 'shape': (9,), }";
  for (const int token : tokens) {
    for (int i = 0; i < 4; ++i) wide += static_cast<char>(token >> (8 * i));
    npy += wide.substr(wide.size() - 4) + std::string(4, '\0');
  }
  header.resize(118, ' ');
  npy = std::string("\x93NUMPY\1\0\x76\0", 10) + header + npy;
  options_["holdout"] = "0";
  options_["vocabulary"] = "2147483646";
  const auto first = [&](const std::string& content, const char* format) {
    options_["path"] = folder_.Write("x", content);
    options_["format"] = format;
    const std::vector<int32_t> got = TokensOf(*Open().train, 0, 0);
    EXPECT_TRUE(
        std::equal(got.begin(), got.end(), std::find(tokens.begin(), tokens.end(), got[0])));
    return got;
  };
  const auto expected = first(wide, "uint32");
  EXPECT_EQ(first(npy, "guess"), expected);
  EXPECT_EQ(first(TokenHeader(9, 20240801, 7) + wide, "guess"), expected);
  options_["vocabulary"] = "9";
  const OpenedDataset narrow = Open();
  std::vector<int32_t> input(4), target(4);
  EXPECT_THAT(narrow.train->Get(0, 0, input.data(), target.data()).message(), HasSubstr("0 to 8"));
  options_["path"] = folder_.Write("odd", wide + "x");
  options_["format"] = "uint32";
  ExpectError(StatusCode::kBadData, HasSubstr("no whole number of tokens"));
}

TEST_F(Tokens, TokensAloneAreThoseBehindAHeader) {
  options_["holdout"] = "0";
  options_["path"] = folder_.Write("x.bin", TokenBytes(Counting(5, 40)));
  const auto expected = TokensOf(*Open().train, 3, 1);
  options_["path"] = folder_.Write("raw.bin", TokenBytes(Counting(5, 40)).substr(1024));
  options_["format"] = "uint16";
  EXPECT_EQ(TokensOf(*Open().train, 3, 1), expected);
}

TEST_F(Tokens, TheDigestTellsWhetherRanksReadTheSame) {
  const auto digest = [&](const std::vector<int>& tokens) {
    options_["path"] = folder_.Write("x.bin", TokenBytes(tokens));
    return Open().train->digest();
  };
  std::vector<int> tokens = Counting(0, 50);
  const std::string small = digest(tokens);
  EXPECT_EQ(digest(tokens), small);
  tokens[17] = 3;
  EXPECT_NE(digest(tokens), small);
  // Of a file of 4 MB parts are looked at: its beginning and its end among them.
  std::vector<int> large(2'000'000, 9);
  options_["holdout"] = "0";
  const std::string before = digest(large);
  EXPECT_EQ(digest(large), before);
  large.front() = 8;
  const std::string first = digest(large);
  EXPECT_NE(first, before);
  large.back() = 8;
  EXPECT_NE(digest(large), first);
  large.pop_back();
  large.back() = 8;
  EXPECT_NE(digest(large), first) << "another size";
}

TEST_F(Tokens, OptionsAndFoldersThatMakeNoSense) {
  options_["path"] = folder_ / "none";
  ExpectError(StatusCode::kMissingInput, HasSubstr(options_["path"]));
  options_["path"] = folder_.path();
  ExpectError(StatusCode::kMissingInput, HasSubstr("NAME_train.bin"));
  options_["path"] = folder_.Write("x.bin", TokenBytes(Counting(0, 8)));
  ExpectError(StatusCode::kBadData, AllOf(HasSubstr("7 tokens to train on"), HasSubstr("least 8")));
  options_["path"] = folder_.Write("x.bin", TokenBytes(Counting(0, 20)));
  ExpectError(StatusCode::kBadData,
              AllOf(HasSubstr("2 tokens to evaluate on"), HasSubstr("least 5")));
  options_["eval_path"] = folder_ / "gone";
  ExpectError(StatusCode::kMissingInput, HasSubstr("gone"));
  options_["format"] = "uint16";
  ExpectError(StatusCode::kBadData, HasSubstr("not tokens alone"));
}

}  // namespace
}  // namespace engine
