// The tables against the sums that were published with them, and the files of configs/ against the
// code that wrote them.
#include "bench/profile/profile.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <set>

namespace engine::bench {
namespace {

using testing::HasSubstr;

constexpr ProfileOptions kUnscaled = {.time_scale = 1, .bytes_scale = 1};

ProfileFacts FactsOf(const char* name, const ProfileOptions& options = {}) {
  const auto facts = GetProfileFacts(name, options);
  EXPECT_TRUE(facts.ok()) << facts.status().message();
  return facts.ok() ? *facts : ProfileFacts();
}

TEST(ProfileTest, Vgg16AddsUpToItsMeasuredTotals) {
  const ProfileFacts facts = FactsOf("vgg16", kUnscaled);
  EXPECT_NEAR(facts.forward_seconds, 82.9e-3, 1e-9);
  EXPECT_NEAR(facts.backward_seconds, 111.6e-3, 0.05e-3);
  EXPECT_NEAR(static_cast<double>(facts.gradient_bytes), 553.5e6, 0.1e6);
}

TEST(ProfileTest, Resnet50AddsUpToItsMeasuredTotals) {
  const ProfileFacts facts = FactsOf("resnet50", kUnscaled);
  EXPECT_NEAR(facts.forward_seconds, 63.3e-3, 1e-9);
  EXPECT_NEAR(facts.backward_seconds, 64.8e-3, 0.05e-3);
  EXPECT_NEAR(static_cast<double>(facts.gradient_bytes), 102.2e6, 0.1e6);
}

TEST(ProfileTest, NamesOfLayersAreUnique) {
  for (const std::string name : {"vgg16", "resnet50"}) {
    const auto profile = FindProfile(name);
    ASSERT_TRUE(profile.ok());
    std::set<std::string> names;
    for (const ProfileLayer& layer : profile->layers) names.insert(layer.name);
    EXPECT_EQ(names.size(), profile->layers.size()) << name;
  }
}

TEST(ProfileTest, ScalesApplyToTimesAndBytes) {
  const ProfileFacts full = FactsOf("vgg16", kUnscaled);
  const ProfileFacts scaled = FactsOf("vgg16", {.time_scale = 4, .bytes_scale = 1.0 / 16});
  EXPECT_NEAR(scaled.forward_seconds, 4 * full.forward_seconds, 1e-9);
  EXPECT_NEAR(scaled.backward_seconds, 4 * full.backward_seconds, 1e-9);
  EXPECT_NEAR(static_cast<double>(scaled.gradient_bytes),
              static_cast<double>(full.gradient_bytes) / 16, 16 * 4);
}

TEST(ProfileTest, UnknownNamesAndWrongScalesAreNamed) {
  const auto unknown = ProfileConfig("vgg19", {});
  ASSERT_FALSE(unknown.ok());
  EXPECT_EQ(unknown.status().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(unknown.status().message(), HasSubstr("'vgg19'; there are: vgg16, resnet50"));
  for (const ProfileOptions& options :
       {ProfileOptions{.time_scale = -1}, ProfileOptions{.bytes_scale = 0},
        ProfileOptions{.jitter = 1}, ProfileOptions{.steps = 0}}) {
    EXPECT_FALSE(ProfileConfig("vgg16", options).ok());
    EXPECT_FALSE(GetProfileFacts("vgg16", options).ok());
  }
}

TEST(ProfileTest, FilesOfConfigsAreWhatTheCodeWrites) {
  for (const std::string name : {"vgg16", "resnet50"}) {
    const std::string path = ENGINE_TEST_SOURCE_DIR "/configs/profile_" + name + ".pbtxt";
    std::ifstream stream(path);
    const std::string file{std::istreambuf_iterator<char>(stream), {}};
    const auto text = ProfileConfig(name, {});
    ASSERT_TRUE(text.ok()) << text.status().message();
    EXPECT_EQ(file, *text) << path << " should be:\n" << *text;
  }
}

}  // namespace
}  // namespace engine::bench
