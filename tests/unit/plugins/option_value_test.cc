#include "app/plugins/option_value.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "app/plugins/roles.h"
#include "app/plugins/words.h"
#include "kit/options.h"
#include "tests/support/expect_status.h"

namespace engine::plugins {
namespace {

using plugin::OwnedOption;
using plugin::Views;

std::string Refusal(const OptionSpec& spec) {
  const Status status = CheckOptionSpecs({spec}, {});
  EXPECT_EQ(status.code(), StatusCode::kPlugin);
  return status.message();
}

TEST(Options, ThatDescribeAHost) {
  plugin::PluginEntry plugin{.kind = PluginKind::kCommunicator,
                             .options = {kit::PathOption("images", kit::Path::kRequired, "")}};
  for (const char* name : {"interface", "hostname", "device", "io_threads", "key_file"}) {
    EXPECT_TRUE(DescribesHost(plugin, name)) << name;
  }
  EXPECT_FALSE(DescribesHost(plugin, "algorithm"));
  EXPECT_FALSE(DescribesHost(plugin, "images"));
  plugin.kind = PluginKind::kDataset;
  EXPECT_TRUE(DescribesHost(plugin, "images"));
}

TEST(Options, OfTheNetworkAreSetUnlessTheUserHas) {
  const auto used = [](const HostNetwork& network, const std::string& hostname) {
    plugin::PluginChoice choice;
    choice.options = {{.name = "interface"}, {.name = "hostname", .string = hostname}};
    choice.inner = {choice};
    UseNetwork(network, &choice);
    EXPECT_EQ(choice.options[1].string, choice.inner[0].options[1].string);
    return choice.options[0].string + "," + choice.options[1].string;
  };
  EXPECT_EQ(used({"", "10.0.0.1"}, ""), ",10.0.0.1");
  EXPECT_EQ(used({"eth0", "10.0.0.1"}, ""), "eth0,");
  EXPECT_EQ(used({"eth0", "10.0.0.1"}, "n1"), ",n1");
  EXPECT_EQ(used({}, ""), ",");
}

TEST(Options, AListOfNumbers) {
  const OptionSpec spec{
      .name = "blocks", .type = OptionType::kInts, .default_value = "2,-3", .min = -5, .max = 9};
  EXPECT_TRUE(CheckOptionSpecs({spec}, {}).ok());
  EXPECT_FALSE(IsRequired(spec));
  const auto value = ValueOf(ParseOptionValue(spec, "2,-3"));
  EXPECT_THAT(value.integers, ElementsAre(2, -3));
  EXPECT_EQ(ToText(value), "[2, -3]");
  EXPECT_THAT(Options(Views({value})).Ints("blocks"), ElementsAre(2, -3));
  EXPECT_THAT(ParseOptionValue(spec, "")->integers, IsEmpty());
  for (const char* wrong : {",", "1,", "1,,2", "1 2", "x", "1,x", "1.5"}) {
    EXPECT_FALSE(ParseOptionValue(spec, wrong).ok()) << wrong;
  }
  EXPECT_THAT(CheckOptionValue(spec, *ParseOptionValue(spec, "1,10,2")).message(),
              HasSubstr("10 is outside -5 .. 9"));
  OptionSpec outside = spec;
  outside.default_value = "2,10";
  EXPECT_THAT(Refusal(outside), HasSubstr("wrong default: 10 is outside"));
  outside.max = std::numeric_limits<double>::infinity();
  EXPECT_TRUE(CheckOptionSpecs({outside}, {}).ok());
  EXPECT_EQ(DescribeRange(outside), "-5 .. inf");
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
  EXPECT_THAT(Refusal(spec), HasSubstr("must have a name as its default"));
  spec.default_value = "relu";
  EXPECT_TRUE(CheckOptionSpecs({spec}, {}).ok());
  EXPECT_EQ(Options(Views({*ParseOptionValue(spec, "gelu")})).String("activation"), "gelu");
}

TEST(CompleteAttributes, AreThoseThatTheOpPublishes) {
  plugin::PluginEntry entry;
  entry.name = "ops";
  entry.options = {
      {.scope = "linear", .name = "units", .type = OptionType::kInt, .min = 1, .max = 9},
      {.scope = "linear", .name = "bias", .type = OptionType::kBool, .default_value = "true"},
      {.scope = "relu", .name = "leak", .type = OptionType::kFloat, .default_value = "0"},
      {.scope = "pad", .name = "units", .type = OptionType::kInts}};
  OwnedOption units{.name = "units", .type = OptionType::kInt, .integer = 3};
  const auto complete = ValueOf(CompleteAttributes(entry, "linear", {units}));
  ASSERT_EQ(complete.size(), 2u);
  EXPECT_EQ(complete[0].integer, 3);
  EXPECT_EQ(complete[1].name, "bias");
  EXPECT_EQ(complete[1].integer, 1);
  EXPECT_EQ(ValueOf(CompleteAttributes(entry, "pad", {units}))[0].integers,
            std::vector{int64_t{3}});
  EXPECT_FALSE(CompleteAttributes(entry, "linear", {}).ok()) << "units must be given";
  EXPECT_STREQ(CompleteAttributes(entry, "relu", {units}).status().message(),
               "op 'relu' of plugin 'ops' has no attribute 'units'");
  units.integer = 10;
  EXPECT_STREQ(CompleteAttributes(entry, "linear", {units}).status().message(),
               "op 'linear', units: 10 is outside 1 .. 9");
}

TEST(Nearest, FindsTheWordThatWasMeant) {
  const std::vector<std::string> words = {"steps", "epochs", "beta1", "beta2", "learning_rate"};
  EXPECT_EQ(Nearest("stepps", words), "steps");
  EXPECT_EQ(Nearest("setps", words), "steps") << "a swap is one change";
  EXPECT_EQ(Nearest("beta9", words), "beta1") << "of equals the first";
  EXPECT_EQ(Nearest("lerning_rat", words), "learning_rate");
  EXPECT_EQ(Nearest("momentum", words), "");
  EXPECT_EQ(Nearest("", words), "");
  EXPECT_EQ(Nearest(std::string(100000, 'a'), words), "");
  EXPECT_EQ(Nearest("x", {}), "");
  EXPECT_EQ(Nearest("x", {"y"}), "") << "nothing of the word would be left";
  EXPECT_EQ(DidYouMean("stpes", {"steps"}), "; did you mean 'steps'?");
  EXPECT_EQ(DidYouMean("zzz", {"steps"}), "");
}

TEST(OptionSpecs, AreChecked) {
  EXPECT_TRUE(CheckOptionSpecs({{.name = "a", .type = OptionType::kInt}}, {}).ok());
  EXPECT_TRUE(CheckOptionSpecs({{.scope = "linear", .name = "a"}}, {"linear"}).ok());
  const auto refused = [](const OptionSpec& spec, const char* end) {
    EXPECT_THAT(Refusal(spec), EndsWith(end));
  };
  refused({.name = "A"}, "name is not [a-z][a-z0-9_]*");
  refused({.scope = "conv", .name = "a"}, "option 'a' belongs to 'conv', which is no op here");
  refused({.name = "a", .type = static_cast<OptionType>(9)}, "has an unknown type");
  refused({.name = "a", .type = OptionType::kInt, .min = 2, .max = 1},
          "has a range whose end is below its start");
  refused({.name = "a", .type = OptionType::kBool, .min = 1, .max = 2},
          "has a range, but is neither numbers nor a text or list");
  refused({.name = "a", .type = OptionType::kEnum},
          "must have choices if, and only if, it is an enum");
  refused({.name = "a", .type = OptionType::kInt, .choices = "x|y"},
          "must have choices if, and only if, it is an enum");
  refused({.name = "a", .type = OptionType::kEnum, .choices = "x||y"},
          "distinct words separated by '|'");
  refused({.name = "a", .type = OptionType::kEnum, .choices = "x|x"},
          "distinct words separated by '|'");
  refused({.name = "a", .type = OptionType::kEnum, .default_value = "z", .choices = "x|y"},
          "\"z\" is none of x | y");
  refused({.name = "a", .type = OptionType::kBool, .default_value = "1"},
          "'1' is not of type bool");
  refused({.name = "a", .type = OptionType::kFloat, .default_value = "inf"},
          "inf is not a finite number");
  const Status twice = CheckOptionSpecs({{.name = "a"}, {.name = "a"}}, {});
  EXPECT_STREQ(twice.message(), "option 'a' is published twice");
}

}  // namespace
}  // namespace engine::plugins
