// `engine conform` on plugins with one fault each: it is found, by the right test, and can be
// repeated.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <ostream>
#include <string>
#include <vector>

#include "tests/support/engine_process.h"
#include "tests/support/temp_folder.h"
#include "tests/support/words.h"

namespace engine::testing {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::string Library(const std::string& name) {
  return FAULTY_PLUGINS "/libengine_" + name + ".so";
}

Outcome Conform(const std::string& words) {
  return RunEngine(".", Words("conform " + words));
}

std::vector<json> FailedOf(const std::string& text) {
  const json all = json::parse(text);
  std::vector<json> failed;
  for (const json& test : all.at("tests")) {
    if (test.at("outcome") == "failed") failed.push_back(test);
  }
  return failed;
}

struct Fault {
  const char *plugin, *fault, *test, *message;
  const char* more = "";
};
void PrintTo(const Fault& fault, std::ostream* out) {
  *out << fault.fault;
}

class Faults : public ::testing::TestWithParam<Fault> {};

TEST_P(Faults, IsFoundByOneTestAndRepeated) {
  const auto& [plugin, fault, test, message, more] = GetParam();
  const std::string words =
      Library(plugin) + " --set fault=" + std::string(fault) + std::string(more);
  const Outcome outcome = Conform(words + " --json");
  EXPECT_EQ(outcome.exit_code, 79) << outcome.err;
  const std::vector<json> failed = FailedOf(outcome.out);
  ASSERT_EQ(failed.size(), 1u) << outcome.out;
  const json& found = failed[0];
  EXPECT_EQ(std::string(found.at("suite")) + "." + std::string(found.at("test")), test);
  EXPECT_EQ(found.at("level"), "must");
  EXPECT_THAT(std::string(found.at("header")), HasSubstr("engine/"));
  EXPECT_NE(found.at("contract"), "");
  EXPECT_THAT(std::string(found.at("message")), HasSubstr(message));
  const std::string repeat = found.at("repeat");
  EXPECT_THAT(repeat, AllOf(HasSubstr("engine conform " + Library(plugin)),
                            HasSubstr("--set fault=" + std::string(fault)),
                            HasSubstr(std::string("--suite ") + test)));
  const Outcome again = RunEngine(".", Words(repeat.substr(sizeof "engine") + std::string(more)));
  EXPECT_EQ(again.exit_code, 79);
  EXPECT_THAT(again.out, AllOf(HasSubstr(std::string("FAILED (must) ") + test),
                               HasSubstr("must 0/1, should 0/0 passed")));
}

constexpr char kMargins[] = "hook.WritesNothingBesideTheGradient";
INSTANTIATE_TEST_SUITE_P(
    , Faults,
    ::testing::Values(
        Fault{"faulty_hook", "throw", kMargins, "crashed with SIGABRT"},
        Fault{"faulty_hook", "hang", kMargins, "did not end within 1 s", " --timeout 1"},
        Fault{"faulty_hook", "exit", kMargins, "ended the process"},
        Fault{"faulty_hook", "remember", "hook.RemembersOnlyWhatItSaves", "scale"},
        Fault{"faulty_scheduler", "allocate", "scheduler.DoesNotAllocateAfterTheFirstStep",
              "alloc"},
        Fault{"faulty_optimizer", "overrun", "optimizer.WritesNothingBesideValueAndStates",
              "beyond the last of 16 elements"},
        Fault{"faulty_dataset", "order",
              "dataset.ASampleDependsOnItsIndexAndNotOnWhatElseIsAskedFor", "sample"}),
    [](const auto& fault) { return std::string(fault.param.fault); });

// Not on every graph: the seed says on which.
TEST(Conform, ASeedRepeatsWhatASchedulerForgets) {
  const std::string words = Library("faulty_scheduler") + " --set fault=forget --json";
  const std::vector<json> failed = FailedOf(Conform(words + " --suite scheduler").out);
  const auto runs = std::ranges::find(failed, "RunsEveryTaskOnceAndOnlyWhenItIsReady",
                                      [](const json& test) { return test.at("test"); });
  ASSERT_NE(runs, failed.end());
  EXPECT_NE(runs->at("seed"), "1");
  const std::string repeat = std::string(runs->at("repeat")) + " --json";
  const std::vector<json> again = FailedOf(RunEngine(".", Words(repeat.substr(7))).out);
  ASSERT_EQ(again.size(), 1u);
  EXPECT_EQ(again[0].at("seed"), runs->at("seed"));
  EXPECT_EQ(again[0].at("message"), runs->at("message"));
}

TEST(Conform, WhatIsRightConforms) {
  for (const char* name :
       {"faulty_hook", "faulty_scheduler", "faulty_optimizer", "faulty_dataset"}) {
    const Outcome outcome = Conform(Library(name) + " --level should");
    EXPECT_EQ(outcome.exit_code, 0) << outcome.out << outcome.err;
  }
  const Outcome by_step = Conform(Library("faulty_hook") + " --set fault=by_step --badge");
  EXPECT_EQ(by_step.exit_code, 0);
  EXPECT_THAT(by_step.out,
              ::testing::MatchesRegex(
                  "\\*\\*faulty_hook 1\\.0\\.0\\*\\* \\(hook, plugin ABI [0-9.]+\\) conforms: "
                  "must [0-9]+/[0-9]+, should 2/2, judged by engine [0-9.]+\n"));
}

TEST(Conform, JsonGoesToAFileBesideTheText) {
  const TempFolder folder;
  const Outcome outcome = Conform(Library("faulty_dataset") + " --json " + folder / "out.json");
  EXPECT_THAT(outcome.out, HasSubstr("must 8/8, should 2/2 passed"));
  EXPECT_THAT(FailedOf(ReadWhole(folder / "out.json")), IsEmpty());
  EXPECT_EQ(Conform(Library("faulty_dataset") + " --json /dev/full").exit_code, 203);
}

TEST(Conform, NothingThatRanIsAFailure) {
  const Outcome no_test = Conform(Library("faulty_hook") + " --suite hook.NoSuchTest");
  EXPECT_EQ(no_test.exit_code, 79);
  EXPECT_THAT(no_test.out, HasSubstr("no test of the suite ran"));
  const Outcome absent = Conform(Library("faulty_hook") + " --suite wire");
  EXPECT_EQ(absent.exit_code, 79);
  EXPECT_THAT(absent.out, HasSubstr("gradients travel as they are"));
}

TEST(Conform, WhatCannotBeJudgedIsOneSentence) {
  struct Case {
    std::string words;
    int exit_code;
    const char* message;
  };
  const Case cases[] = {
      {Library("faulty_hook") + " --suite nosuch", 2, "there is no suite 'nosuch'"},
      {Library("faulty_hook") + " --suite scheduler", 79, "a plugin of kind hook: choose of"},
      {Library("faulty_hook") + " --set falt=x", 78, "did you mean 'fault'?"},
      {FAULTY_PLUGINS "/nothing.so", 79, "nothing.so"},
      {"/etc/passwd", 79, "no ELF file"},
      {ENGINE_TEST_BINARY, 79, "engine"},
  };
  for (const Case& one : cases) {
    const Outcome outcome = Conform(one.words);
    EXPECT_EQ(outcome.exit_code, one.exit_code) << one.words;
    EXPECT_THAT(outcome.err, AllOf(HasSubstr("engine: "), HasSubstr(one.message)));
    EXPECT_EQ(std::ranges::count(outcome.err, '\n'), 1) << outcome.err;
    EXPECT_EQ(outcome.out, "");
  }
  EXPECT_EQ(Conform("").exit_code, 2);
}

}  // namespace
}  // namespace engine::testing
