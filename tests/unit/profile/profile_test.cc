// The files configs/profile_*.pbtxt against the sums that were published with their numbers.
#include "bench/profile/profile.h"

#include <gmock/gmock.h>

#include "bench/bench.h"
#include "tests/support/expect_status.h"

namespace engine::bench {
namespace {

config::Config Load(const std::string& text, std::vector<std::string> overrides = {}) {
  return ValueOf(config::Config::Load({.text = text,
                                       .origin = "test",
                                       .overrides = std::move(overrides),
                                       .plugin_folders = {ENGINE_TEST_PLUGIN_DIR}}));
}

struct Published {
  const char* name;
  double forward_ms, backward_ms, gradient_mb;
};

TEST(ProfileTest, ProfilesAddUpToTheirMeasuredTotals) {
  for (const auto& [name, forward_ms, backward_ms, gradient_mb] :
       {Published{"vgg16", 82.9, 111.6, 553.5}, Published{"resnet50", 63.3, 64.8, 102.2}}) {
    SCOPED_TRACE(name);
    const std::string text = Profiles().at(name);
    const ProfileFacts measured =
        FactsOf(Load(text, {"profile_ops.time_scale=1", "profile_ops.size_scale=1"})).value();
    EXPECT_NEAR(1e3 * measured.forward_seconds, forward_ms, 0.05);
    EXPECT_NEAR(1e3 * measured.backward_seconds, backward_ms, 0.05);
    EXPECT_NEAR(1e-6 * static_cast<double>(measured.gradient_bytes), gradient_mb, 0.1);
    // As they are run.
    const ProfileFacts scaled = FactsOf(Load(text)).value();
    EXPECT_NEAR(scaled.forward_seconds, 4 * measured.forward_seconds, 1e-9);
    EXPECT_NEAR(scaled.backward_seconds, 4 * measured.backward_seconds, 1e-9);
    EXPECT_NEAR(static_cast<double>(scaled.gradient_bytes),
                static_cast<double>(measured.gradient_bytes) / 16, 16 * 4);
  }
}

TEST(ProfileTest, OtherModelsStateNothing) {
  const std::string text = Profiles().at("vgg16");
  EXPECT_FALSE(FactsOf(Load(text, {"model.mlp.hidden=3"})));
  const std::string real = "layer { relu {} } layer { name: \"conv1\" ";
  std::string mixed = text;
  mixed.replace(mixed.find("layer { name: \"conv1\" "), 22, real);
  EXPECT_FALSE(FactsOf(Load(mixed)));
}

TEST(ProfileTest, UnknownNamesAreRefused) {
  TrainRequest request;
  EXPECT_THAT(UseProfile("vgg19", "/tmp", &request),
              FailsWith(StatusCode::kInvalidArgument,
                        ::testing::HasSubstr("'vgg19'; there are: resnet50, vgg16")));
}

}  // namespace
}  // namespace engine::bench
