// The file of choices: what is written is found, by all ranks alike; damage costs the damaged line
// only, and what is not this file stays as it was.
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <string>

#include "blas_tune.h"
#include "tests/support/matchers.h"
#include "tests/support/memory_host.h"
#include "tests/support/temp_folder.h"

namespace engine::cuda_ops {
namespace {

class TuneFileTest : public ::testing::Test {
 protected:
  static cublasLtMatmulAlgo_t Choice(uint64_t number) {
    cublasLtMatmulAlgo_t choice;
    for (uint64_t& word : choice.data) word = number++ * 0x123456789abcdef;
    return choice;
  }
  static bool Is(const cublasLtMatmulAlgo_t& choice, uint64_t number) {
    const cublasLtMatmulAlgo_t wanted = Choice(number);
    return std::equal(std::begin(choice.data), std::end(choice.data), wanted.data);
  }

  void Write(const std::string& text) const { std::ofstream(path_, std::ios::binary) << text; }
  std::string Text() const {
    std::ifstream file(path_, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }

  // 0: none.
  uint64_t Found(std::string_view key, Host* host = nullptr) {
    cublasLtMatmulAlgo_t choice;
    if (!TuneFile(path_, host).Find(key, &choice)) return 0;
    uint64_t number = 1;
    while (number < 10 && !Is(choice, number)) ++number;
    return number;
  }
  // What a rank goes on with that has measured `number`.
  uint64_t Measured(std::string_view key, uint64_t number) {
    TuneFile file(path_, &host_);
    cublasLtMatmulAlgo_t choice;
    EXPECT_FALSE(file.Find(key, &choice));
    choice = Choice(number);
    file.Keep(key, &choice);
    EXPECT_TRUE(Is(choice, number));
    return Found(key);
  }

  test::TempFolder folder_;
  const std::string path_ = folder_ / "tune.txt";
  test::MemoryHost host_{{}, nullptr};
};

TEST_F(TuneFileTest, WhatWasKeptIsFoundByItsKey) {
  EXPECT_EQ(Found("a"), 0u);
  EXPECT_EQ(Measured("a = b", 1), 1u);
  EXPECT_EQ(Measured("a", 2), 2u);
  EXPECT_EQ(Found("a = b"), 1u);
  EXPECT_EQ(Found("b"), 0u);
}

// Both have looked before either has written, and the file has two headers.
TEST_F(TuneFileTest, RanksThatMeasureAtATimeTakeTheFirstChoice) {
  TuneFile one(path_, &host_), other(path_, &host_);
  cublasLtMatmulAlgo_t first = Choice(1), second = Choice(2);
  EXPECT_FALSE(one.Find("a", &first));
  EXPECT_FALSE(other.Find("a", &second));
  one.Keep("a", &first);
  other.Keep("a", &second);
  EXPECT_TRUE(Is(first, 1));
  EXPECT_TRUE(Is(second, 1));
  EXPECT_EQ(Found("a"), 1u);
  EXPECT_THAT(host_.log(), ElementsAre(HasSubstr("measured now"), HasSubstr("measured now")));
}

TEST_F(TuneFileTest, ADamagedLineIsSkippedAndSaidOnce) {
  Measured("a", 1);
  const std::string header = Text().substr(0, Text().find('\n') + 1);
  const std::string line = Text().substr(header.size());
  for (size_t i = 0; i + 1 < line.size(); ++i) {
    std::string damaged = line;
    damaged[i] ^= 4;
    Write(header + damaged + damaged + line);
    test::MemoryHost host({}, nullptr);
    EXPECT_EQ(Found("a", &host), 1u) << i;
    EXPECT_THAT(host.log(), ElementsAre(HasSubstr("damaged"))) << i;
    Write(header + damaged);
    EXPECT_EQ(Found("a"), 0u) << i;
  }
}

TEST_F(TuneFileTest, ATornLineStaysAndTheNextOneIsWhole) {
  Measured("a", 1);
  const std::string whole = Text();
  const size_t header = whole.find('\n') + 1;
  for (size_t size = header; size + 1 < whole.size(); size += 7) {
    Write(whole.substr(0, size));
    EXPECT_EQ(Measured("b", 3), 3u) << size;
    EXPECT_THAT(Text(), StartsWith(whole.substr(0, size)));
  }
}

TEST_F(TuneFileTest, AnotherFileIsLeftAlone) {
  for (const std::string text : {"notes\n", "engine cuda_ops tune 2\n", "\n", "engine cuda"}) {
    Write(text);
    TuneFile file(path_, &host_);
    cublasLtMatmulAlgo_t choice = Choice(1);
    EXPECT_FALSE(file.Find("a", &choice));
    file.Keep("a", &choice);
    EXPECT_TRUE(Is(choice, 1));
    EXPECT_EQ(Text(), text);
  }
  EXPECT_EQ(host_.log().size(), 4u);
  EXPECT_THAT(host_.log()[0], HasSubstr("left alone"));
}

TEST_F(TuneFileTest, WithoutAPlaceToWriteTheChoiceIsTakenAllTheSame) {
  for (const std::string& path : {folder_ / "missing/tune.txt", folder_ / ""}) {
    TuneFile file(path, &host_);
    cublasLtMatmulAlgo_t choice = Choice(1);
    EXPECT_FALSE(file.Find("a", &choice));
    file.Keep("a", &choice);
    EXPECT_TRUE(Is(choice, 1));
    EXPECT_THAT(host_.log().back(), HasSubstr("cannot be written"));
  }
}

}  // namespace
}  // namespace engine::cuda_ops
