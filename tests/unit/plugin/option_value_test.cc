#include "core/plugin/option_value.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/plugin/layer_list.h"

namespace engine::plugin {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::string Refusal(const OptionSpec& spec) {
  const Status status = CheckOptionSpecs({spec}, {});
  EXPECT_EQ(status.code(), StatusCode::kPlugin);
  return status.message();
}

TEST(Options, AListOfNumbers) {
  const OptionSpec spec{
      .name = "blocks", .type = OptionType::kInts, .default_value = "2,-3", .min = -5, .max = 9};
  EXPECT_TRUE(CheckOptionSpecs({spec}, {}).ok());
  EXPECT_FALSE(IsRequired(spec));
  const auto value = ParseOptionValue(spec, "2,-3");
  ASSERT_TRUE(value.ok()) << value.status().message();
  EXPECT_THAT(value->integers, ElementsAre(2, -3));
  EXPECT_EQ(ToText(*value), "[2, -3]");
  EXPECT_THAT(Options(Views({*value})).Ints("blocks"), ElementsAre(2, -3));
  EXPECT_THAT(ParseOptionValue(spec, "")->integers, IsEmpty());
  for (const char* wrong : {",", "1,", "1,,2", "1 2", "x", "1,x", "1.5"}) {
    EXPECT_FALSE(ParseOptionValue(spec, wrong).ok()) << wrong;
  }
  EXPECT_THAT(CheckOptionValue(spec, *ParseOptionValue(spec, "1,10,2")).message(),
              HasSubstr("10 is outside -5 .. 9"));
  OptionSpec outside = spec;
  outside.default_value = "2,10";
  EXPECT_THAT(Refusal(outside), HasSubstr("wrong default: 10 is outside"));
}

TEST(Options, ATextMayHaveToBeGiven) {
  OptionSpec spec{.name = "path", .type = OptionType::kString};
  EXPECT_FALSE(IsRequired(spec));
  spec.min = 1;
  spec.max = 3;
  EXPECT_TRUE(IsRequired(spec));
  EXPECT_TRUE(CheckOptionSpecs({spec}, {}).ok());
  EXPECT_TRUE(CheckOptionValue(spec, *ParseOptionValue(spec, "abc")).ok());
  EXPECT_THAT(CheckOptionValue(spec, *ParseOptionValue(spec, "abcd")).message(),
              HasSubstr("\"abcd\" is outside 1 .. 3 bytes"));
}

TEST(Options, WordsInCapitalsAreWrittenBare) {
  OptionSpec spec{.name = "stem", .type = OptionType::kEnum, .default_value = "LARGE_2"};
  spec.choices = "LARGE_2|SMALL";
  EXPECT_TRUE(IsWrittenBare(spec));
  spec.choices = "LARGE_2|small";
  EXPECT_FALSE(IsWrittenBare(spec));
  EXPECT_FALSE(IsWrittenBare({.name = "x", .type = OptionType::kString, .default_value = "A"}));
}

TEST(Options, AnOpHasToBeNamed) {
  OptionSpec spec{.name = "activation", .type = OptionType::kOp};
  EXPECT_THAT(Refusal(spec), HasSubstr("must have an op as its default"));
  spec.default_value = "relu";
  EXPECT_TRUE(CheckOptionSpecs({spec}, {}).ok());
  EXPECT_EQ(Options(Views({*ParseOptionValue(spec, "gelu")})).String("activation"), "gelu");
}

TEST(Options, LayersAreSeenThroughTheirList) {
  OwnedLayer layer{.op = "linear", .name = "a", .trainable = false, .priority = 3};
  layer.attributes = {{.name = "units", .type = OptionType::kInt, .integer = 7}};
  OwnedLayer block{.op = "", .name = "b"};
  block.residual = {layer, layer};
  block.shortcut = {layer};
  const auto list = std::make_shared<const LayerList>(std::vector<OwnedLayer>{layer, block});
  const std::vector<OptionValue> views =
      Views({{.name = "layer", .type = OptionType::kLayers, .layers = list}});
  const std::span<const LayerSpec> layers = Layers(Options(views), "layer");
  ASSERT_EQ(layers.size(), 2u);
  EXPECT_EQ(layers[0].op, "linear");
  EXPECT_EQ(layers[0].trainable, 0u);
  EXPECT_EQ(layers[0].priority, 3);
  EXPECT_EQ(Options(layers[0].attributes).Int("units"), 7);
  ASSERT_EQ(layers[1].residual_count, 2u);
  ASSERT_EQ(layers[1].shortcut_count, 1u);
  EXPECT_EQ(layers[1].residual[1].name, "a");
  EXPECT_EQ(Options(layers[1].shortcut[0].attributes).Int("units"), 7);
}

}  // namespace
}  // namespace engine::plugin
