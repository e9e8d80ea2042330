#include "app/checkpoint/retention.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "tests/support/expect_status.h"
#include "tests/support/temp_folder.h"
#include "tests/support/words.h"

namespace engine::train {
namespace {

using ::testing::UnorderedElementsAre;

class Retention : public ::testing::Test {
 protected:
  // As WriteCheckpoint leaves it: a new file in the place of the old one.
  void Replace(const std::string& content) {
    std::filesystem::rename(folder_.Write("next", content), path_);
  }

  void Write(int64_t step, int64_t keep) {
    Replace(std::to_string(step));
    ASSERT_THAT(checkpoint::KeepNewest(path_, step, keep), IsOk());
    EXPECT_EQ(test::ReadWhole(path_), std::to_string(step));
  }

  std::vector<std::string> Names() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(folder_.path())) {
      names.push_back(entry.path().filename());
    }
    return names;
  }

  test::TempFolder folder_;
  const std::string path_ = folder_ / "m.safetensors";
};

TEST(NameAtStep, StandsBeforeTheEnding) {
  EXPECT_EQ(checkpoint::NameAtStep("model.safetensors", 100), "model.000100.safetensors");
  EXPECT_EQ(checkpoint::NameAtStep("/a.b/model", 7), "/a.b/model.000007");
  EXPECT_EQ(checkpoint::NameAtStep("out/.m.x.st", 12345678), "out/.m.x.12345678.st");
  for (const char* first : {"model.safetensors", "/a.b/model", "out/.m.x.st"}) {
    EXPECT_EQ(checkpoint::FirstName(checkpoint::NameAtStep(first, 100), 100), first);
    EXPECT_EQ(checkpoint::FirstName(first, 100), first);
  }
}

TEST_F(Retention, KeepsTheNewest) {
  for (const int64_t step : {8, 9, 10}) Write(step, 3);
  EXPECT_THAT(Names(), UnorderedElementsAre("m.safetensors", "m.000008.safetensors",
                                            "m.000009.safetensors", "m.000010.safetensors"));
  Write(1000000, 3);
  EXPECT_THAT(Names(), UnorderedElementsAre("m.safetensors", "m.000009.safetensors",
                                            "m.000010.safetensors", "m.1000000.safetensors"));
  EXPECT_EQ(test::ReadWhole(folder_ / "m.000009.safetensors"), "9");
  EXPECT_EQ(test::ReadWhole(folder_ / "m.1000000.safetensors"), "1000000");
  // Fewer from now on.
  Write(1000001, 2);
  EXPECT_THAT(Names(), UnorderedElementsAre("m.safetensors", "m.1000000.safetensors",
                                            "m.1000001.safetensors"));
}

TEST_F(Retention, OneIsTheFileAlone) {
  Write(5, 2);
  Write(6, 1);
  EXPECT_THAT(Names(), UnorderedElementsAre("m.safetensors", "m.000005.safetensors"));
}

TEST_F(Retention, OtherFilesStay) {
  const std::vector<std::string> others = Words(
      "m.12.safetensors m.000012.safetensors.bak m.00012x.safetensors m.st m.-00012.safetensors "
      "n.000012.safetensors m.000012 m.+00012.safetensors m.0000012.safetensors "
      ".m.safetensors.tmp.1.1");
  for (const std::string& name : others) folder_.Write(name, "mine");
  for (int64_t step = 20; step < 30; ++step) Write(step, 2);
  std::vector<std::string> expected = others;
  expected.insert(expected.end(),
                  {"m.safetensors", "m.000028.safetensors", "m.000029.safetensors"});
  EXPECT_THAT(Names(), ::testing::UnorderedElementsAreArray(expected));
}

// A run goes back to step 20 and comes to 25: what came after 20 is not of this run.
TEST_F(Retention, WhatARunHasLeftGoesFirst) {
  for (const int64_t step : {20, 30, 40}) Write(step, 3);
  Write(25, 3);
  EXPECT_THAT(Names(), UnorderedElementsAre("m.safetensors", "m.000020.safetensors",
                                            "m.000025.safetensors", "m.000040.safetensors"));
  Write(30, 3);
  EXPECT_THAT(Names(), UnorderedElementsAre("m.safetensors", "m.000020.safetensors",
                                            "m.000025.safetensors", "m.000030.safetensors"));
}

TEST_F(Retention, AStepThatComesAgainReplacesItsFile) {
  Write(20, 2);
  Replace("another 20");
  ASSERT_THAT(checkpoint::KeepNewest(path_, 20, 2), IsOk());
  EXPECT_EQ(test::ReadWhole(folder_ / "m.000020.safetensors"), "another 20");
  EXPECT_EQ(Names().size(), 2u);
}

TEST_F(Retention, AskedBeforeARun) {
  folder_.Write(".m.safetensors.tmp.1.1.link", "of a run that was killed in it");
  EXPECT_THAT(checkpoint::CheckCanKeep(path_, 2), IsOk());
  EXPECT_TRUE(Names().empty()) << "something is left of the question";
  const std::string nowhere = folder_ / "none/m.safetensors";
  EXPECT_THAT(checkpoint::CheckCanKeep(nowhere, 2),
              FailsWith(StatusCode::kStorage, HasSubstr(folder_ / "none")));
  EXPECT_THAT(checkpoint::CheckCanKeep(nowhere, 1), IsOk());
}

TEST_F(Retention, WhatCannotBeRemovedIsNamed) {
  Write(1, 2);
  std::filesystem::create_directories(folder_ / "m.000000.safetensors");
  Replace("2");
  EXPECT_THAT(checkpoint::KeepNewest(path_, 2, 2),
              FailsWith(StatusCode::kStorage, HasSubstr("m.000000.safetensors")));
  EXPECT_THAT(checkpoint::KeepNewest(folder_ / "none", 2, 2), FailsWith(StatusCode::kStorage));
}

}  // namespace
}  // namespace engine::train
