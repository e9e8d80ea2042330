#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include "plugins/text/text_files.h"
#include "tests/support/expect_status.h"
#include "tests/unit/data/dataset_under_test.h"

namespace engine {
namespace {

using test::OpenedDataset;
using test::SplitView;
using test::TempFolder;
using text::IsText;
using text::ReadTextFiles;

class Text : public test::DatasetTest {
 protected:
  Text() : DatasetTest("text") { options_["path"] = folder_.path(); }
};

std::string Sample(const SplitView& dataset, uint64_t epoch, int64_t index) {
  const std::vector<int32_t> tokens = test::TokensOf(dataset, epoch, index);
  return {tokens.begin(), tokens.end()};
}

std::string Numbers(int begin, int end) {
  std::string bytes;
  for (int i = begin; i < end; ++i) bytes += static_cast<char>(i);
  return bytes;
}

TEST_F(Text, HoldsOutTheEndOfEveryFile) {
  folder_.Write("a", Numbers(1, 11));
  folder_.Write("b", Numbers(11, 31));
  options_["context"] = "2";
  options_["holdout"] = "0.2";
  const OpenedDataset pair = Open();
  for (const SampleTensor& tensor : {pair.train->input(), pair.train->target()}) {
    EXPECT_EQ(tensor.classes, 256);
    EXPECT_EQ(tensor.dtype, DType::kInt32);
    EXPECT_EQ(tensor.content, TensorContent::kBytes);
    EXPECT_TRUE(tensor.shape == Shape{2});
  }
  // Held out: 9 10, 27 28 29 30. Two samples of two bytes and their targets.
  ASSERT_EQ(pair.eval->size(), 2);
  EXPECT_EQ(Sample(*pair.eval, 0, 0), "\x09\x0a\x1b");
  EXPECT_EQ(Sample(*pair.eval, 5, 1), "\x1b\x1c\x1d");
  // To train on: 1 .. 8, 11 .. 26.
  const std::string train = Numbers(1, 9) + Numbers(11, 27);
  ASSERT_EQ(pair.train->size(), 11);
  for (uint64_t epoch = 0; epoch < 20; ++epoch) {
    const size_t offset = train.find(Sample(*pair.train, epoch, 0));
    ASSERT_LT(offset, 2u);
    for (size_t i = 0; i < 11; ++i) {
      EXPECT_EQ(Sample(*pair.train, epoch, static_cast<int64_t>(i)),
                train.substr(offset + 2 * i, 3));
    }
  }
}

TEST_F(Text, TheCutDependsOnSeedAndEpoch) {
  options_ = {
      {"path", folder_.Write("text", Numbers(0, 250))}, {"context", "16"}, {"holdout", "0"}};
  const auto begins = [&](uint64_t seed) {  // where the first sample of each epoch begins
    const OpenedDataset pair = Open(seed);
    std::vector<int> of_epoch;
    for (int i = 0; i < 100; ++i) of_epoch.push_back(test::TokensOf(*pair.train, i, 0)[0]);
    return of_epoch;
  };
  const std::vector<int> of_seed_1 = begins(1);
  EXPECT_EQ(of_seed_1, begins(1));
  EXPECT_NE(of_seed_1, begins(2));
  const std::set<int> distinct(of_seed_1.begin(), of_seed_1.end());
  EXPECT_EQ(*distinct.rbegin(), 15);
  EXPECT_EQ(distinct.size(), 16u) << "every offset comes";
}

TEST_F(Text, BytesAbove127AreTokensAbove127) {
  options_ = {{"path", folder_.Write("text", std::string(100, '\xff'))}, {"context", "4"}};
  EXPECT_THAT(test::TokensOf(*Open().train, 0, 0), ElementsAre(255, 255, 255, 255, 255));
}

TEST_F(Text, SaysHowMuchTextIsNeeded) {
  const auto write = [this](size_t bytes, const char* holdout) {
    const std::string path = folder_.Write("text", std::string(bytes, 'x'));
    options_ = {{"path", path}, {"context", "8"}, {"holdout", holdout}};
  };
  write(16, "0");
  EXPECT_TRUE(Open().train);
  write(15, "0");
  ExpectError(StatusCode::kBadData,
              AllOf(HasSubstr("15 bytes of text to train on"), HasSubstr("needs at least 16")));
  write(90, "0.1");
  EXPECT_TRUE(Open().train);
  write(80, "0.1");
  ExpectError(StatusCode::kBadData,
              AllOf(HasSubstr("8 bytes of text to evaluate on"), HasSubstr("needs at least 9")));
  write(0, "0");
  ExpectError(StatusCode::kBadData, HasSubstr("0 bytes of text"));
}

TEST_F(Text, APointIsTheCurrentFolder) {
  folder_.Write("inner/text", std::string(2000, 'x'));
  const auto before = std::filesystem::current_path();
  std::filesystem::current_path(folder_.path());
  options_["path"] = ".";
  const OpenedDataset pair = Open();
  std::filesystem::current_path(before);
  EXPECT_EQ(pair.train->size(), (1800 - 64) / 64);
}

TEST_F(Text, TheDigestTellsWhetherRanksReadTheSame) {
  const auto digest = [&](const std::string& text) {
    folder_.Write("text", text);
    return Open().train->digest();
  };
  const std::string text(2000, 'x');
  // As checkpoints of before have it.
  EXPECT_EQ(digest(text), "xxh3_128:4ff6466fb235d1b840761a7b954ac711");
  EXPECT_NE(digest(text), digest(text + "y"));
}

TEST_F(Text, SaysWhatASampleIsBeforeItIsOpened) {
  test::SingleHost host;
  const auto library = ValueOf(test::PluginUnderTest::Load(test::PluginPaths({"text"})[0]));
  const auto made =
      ValueOf(library.Create<Dataset>(host, {{"path", "/not/there"}, {"context", "7"}}));
  EXPECT_TRUE(made->info().inputs[0].shape == Shape{7});
  EXPECT_EQ(made->info().train_samples, 0);
  EXPECT_EQ(made->Open(1).code(), StatusCode::kMissingInput);
}

TEST(TextFiles, AreThoseOfTheFolderThatHoldText) {
  TempFolder folder, outside;
  folder.Write("z", "last");
  folder.Write("a/b", "second");
  folder.Write("a.txt", "first");  // '.' is before '/'
  folder.Write("buildings", "third, and no folder");
  folder.Write("build/log", "no");
  folder.Write("build-debug/log", "no");
  folder.Write("a/build/log", "no");
  folder.Write(".hidden", "no");
  folder.Write(".git/config", "no");
  folder.Write("empty", "");
  folder.Write("nul", std::string("a\0b", 3));
  folder.Write("latin1", "caf\xe9");
  folder.Write("large", std::string(text::kMaxTextFileBytes + 1, 'x'));
  const std::string secret = outside.Write("secret", "no");
  std::filesystem::create_symlink(secret, folder / "link_out");
  std::filesystem::create_symlink(folder / "z", folder / "link_in");
  std::filesystem::create_directory_symlink(folder.path(), folder / "cycle");

  const auto contents = ValueOf(ReadTextFiles(folder.path()));
  EXPECT_THAT(contents, ElementsAre("first", "second", "third, and no folder", "last"));
}

TEST(TextFiles, AFileThatIsNamedIsReadWhateverItHolds) {
  TempFolder folder;
  const std::string binary("\x00\xff", 2);
  const auto contents = ValueOf(ReadTextFiles(folder.Write(".binary", binary)));
  EXPECT_THAT(contents, ElementsAre(binary));
  std::filesystem::create_symlink(folder / ".binary", folder / "link");
  EXPECT_TRUE(ReadTextFiles(folder / "link").ok());
}

TEST(TextFiles, WhatCannotBeRead) {
  TempFolder folder;
  EXPECT_THAT(ReadTextFiles(folder / "none"),
              FailsWith(StatusCode::kMissingInput, HasSubstr("none': No such file or directory")));
  EXPECT_THAT(ReadTextFiles(folder.path()),
              FailsWith(StatusCode::kBadData, HasSubstr("no text files")));
  EXPECT_EQ(ReadTextFiles("/dev/zero").status().code(), StatusCode::kBadData);
}

TEST(TextFiles, Utf8IsCheckedAsUnicodeSays) {
  for (const char* good :
       {"", "a", "ä", "€", "𝄞", "\xed\x9f\xbf", "\xee\x80\x80", "\xf4\x8f\xbf\xbf"}) {
    EXPECT_TRUE(IsText(good)) << good;
  }
  const char* const kBad[] = {
      "\x80",         "\xc3",         "\xc0\x80",         "\xc1\xbf",         "\xe2\x82",
      "\xe0\x9f\xbf", "\xed\xa0\x80", "\xf0\x8f\xbf\xbf", "\xf4\x90\x80\x80", "\xf5\x80\x80\x80",
      "\xff",         "a\xe2(\xa1",   "\xe2\x82("};
  for (const char* bad : kBad) EXPECT_FALSE(IsText(bad)) << ::testing::PrintToString(bad);
  EXPECT_FALSE(IsText(std::string_view("a\0", 2)));
}

}  // namespace
}  // namespace engine
