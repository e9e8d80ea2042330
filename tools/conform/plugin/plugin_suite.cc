// What every plugin and its options must hold to, whatever the kind.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "app/plugins/option_value.h"
#include "tools/conform/contract.h"
#include "tools/conform/subject.h"

namespace engine::conform {
namespace {

constexpr char kHeader[] = "engine/plugin.h";

TEST(Plugin, DescribesItself) {
  SHOULD("A plugin should have a version and one line of doc.");
  const plugins::PluginFile& file = UnderTest().plugin.file();
  EXPECT_NE(file.version, "");
  EXPECT_NE(file.doc, "");
}

TEST(Plugin, MakesSeveralObjects) {
  MUST("Create may be called several times, for several ranks in one process.");
  auto first = Make<Object>();
  const auto second = Make<Object>();
  first.reset();
  const auto third = Make<Object>();
  EXPECT_NE(second, third);
}

TEST(Plugin, HasNoExtensionThatNobodyKnows) {
  CONTRACT(MUST, "engine/abi/interface.h",
           "An extension of this object by its id: a pointer to its interface, or nullptr.");
  const auto object = Make<Object>();
  for (const char* id : {"", "engine.no_such_extension/1", "engine."}) {
    EXPECT_EQ(object->Query(id, 0), nullptr) << id;
  }
}

TEST(Options, AreDocumented) {
  CONTRACT(SHOULD, "engine/options.h", "Every option should have one line of `doc`.");
  for (const OptionSpec& spec : UnderTest().plugin.option_specs()) {
    EXPECT_NE(spec.doc.view(), "") << spec.scope.view() << " " << spec.name.view();
  }
}

// The default, every word, and both ends of a range.
std::vector<std::string> ValuesToTry(const OptionSpec& spec) {
  std::vector<std::string> values = plugins::Choices(spec);
  if (spec.type == OptionType::kBool) values = {"true", "false"};
  const bool integer = spec.type == OptionType::kInt || spec.type == OptionType::kInts;
  if (spec.min < spec.max && (integer || spec.type == OptionType::kFloat)) {
    for (const double end : {spec.min, spec.max}) {
      values.push_back(integer ? std::to_string(static_cast<int64_t>(end)) : std::to_string(end));
    }
  }
  return values;
}

TEST(Options, AreTakenOrRefusedWithASentence) {
  MUST(
      "Create makes an object of any values that the descriptor allows, or says in a sentence why "
      "it does not.");
  for (const OptionSpec& spec : UnderTest().plugin.option_specs()) {
    if (!spec.scope.view().empty()) continue;
    for (const std::string& value : ValuesToTry(spec)) {
      const std::string name(spec.name.view());
      const Status status =
          UnderTest().plugin.Create<Object>(HostOfOne(), {{name, value}}).status();
      EXPECT_NE(status.code(), StatusCode::kInternal) << name << "=" << value;
      const std::string title = "plugin '" + UnderTest().plugin.name() + "': ";
      EXPECT_TRUE(status.ok() || std::string(status.message()).size() > title.size())
          << name << "=" << value << ": an error without a message";
    }
  }
}

}  // namespace
}  // namespace engine::conform
