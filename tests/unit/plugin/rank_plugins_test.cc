#include "core/plugin/rank_plugins.h"

#include <gmock/gmock.h>

#include <array>
#include <thread>
#include <utility>

#include "app/plugins/roles.h"
#include "tests/support/expect_status.h"
#include "tests/unit/plugin/logging_rank.h"
#include "tests/unit/plugin/plugin_folder.h"

namespace engine::plugin {
namespace {

class RankPluginsTest : public ::testing::Test {
 protected:
  std::vector<PluginChoice> Good() {
    return {folder_.Choose("test_sched"), folder_.Choose("test_ops"), folder_.Choose("test_comm"),
            folder_.Choose("plain_opt")};
  }

  Result<PluginSelection> Assign(const std::vector<PluginChoice>& chosen) {
    return plugins::AssignRoles(chosen, plugins::PluginCatalog::Scan({folder_.path()}));
  }

  // The sentence that a choice beside the good ones is refused with.
  std::string Refusal(const PluginChoice& extra) {
    auto chosen = Good();
    chosen.push_back(extra);
    const auto selection = Assign(chosen);
    EXPECT_TRUE(selection.ok()) << selection.status().message();
    return RankPlugins::Create(*selection, rank_.context).status().message();
  }

  // That of a library that does not become an object.
  std::string RefusalOfFile(const PluginChoice& choice) {
    PluginHost host(choice.entry.name, rank_.context, nullptr, nullptr);
    const Status status = CreateObject(choice, host).status();
    EXPECT_EQ(status.code(), StatusCode::kPlugin);
    return status.message();
  }

  PluginFolder folder_;
  LoggingRank rank_;
};

TEST_F(RankPluginsTest, CreatesInOrderAndDestroysInReverse) {
  auto chosen = Good();
  chosen[0] = folder_.Choose("test_sched", "credit", "9");
  for (const char* more : {"test_hook", "other_hook", "extra_ops"}) {
    chosen.push_back(folder_.Choose(more));
  }
  const auto selection = ValueOf(Assign(chosen));
  {
    const auto plugins = ValueOf(RankPlugins::Create(selection, rank_.context));
    EXPECT_TRUE(folder_.Initialised("test_ops")) << "else Initialised proves nothing elsewhere";
    EXPECT_NE(plugins->set().device, nullptr);
    EXPECT_EQ(std::exchange(rank_.log, ""),
              "+test_ops\n+extra_ops on cpu\n+test_comm on cpu\n+plain_opt on cpu\n"
              "+test_hook on cpu\n+other_hook on cpu\ncredit 9 order ready\n+test_sched on cpu\n");
  }
  EXPECT_EQ(
      rank_.log,
      "-test_sched\n-other_hook\n-test_hook\n-plain_opt\n-test_comm\n-extra_ops\n-test_ops\n");
}

TEST_F(RankPluginsTest, AServerHasACommunicatorAndAnOptimizer) {
  const auto selection = ValueOf(Assign(Good()));
  rank_.context.info.is_server = 1;
  ASSERT_TRUE(RankPlugins::Create(selection, rank_.context).ok());
  EXPECT_EQ(rank_.log, "+test_comm\n+plain_opt\n-plain_opt\n-test_comm\n");
}

TEST_F(RankPluginsTest, MakesOpsOfThePluginThatOffersThem) {
  auto chosen = Good();
  chosen.push_back(folder_.Choose("extra_ops"));
  const auto selection = ValueOf(Assign(chosen));
  const auto plugins = ValueOf(RankPlugins::Create(selection, rank_.context));
  const auto refusal = [&](const char* op, const std::vector<OwnedOption>& attributes) {
    return std::string(plugins->op_factory()(op, attributes).status().message());
  };
  const OwnedOption units{.name = "units", .type = OptionType::kInt, .integer = 3};
  EXPECT_EQ(refusal("linear", {units}), "plugin 'test_ops': test_ops makes no op");
  EXPECT_EQ(refusal("swish", {}), "plugin 'extra_ops': extra_ops makes no op");
  EXPECT_EQ(refusal("swish", {units}), "op 'swish' of plugin 'extra_ops' has no attribute 'units'");
  EXPECT_EQ(refusal("swihs", {}), "no chosen plugin offers the op 'swihs'; did you mean 'swish'?");
}

// Ranks as threads of one process load the same libraries at the same time.
TEST_F(RankPluginsTest, ThreadsMayLoadAtTheSameTime) {
  const auto selection = ValueOf(Assign(Good()));
  std::array<LoggingRank, 4> ranks;
  std::vector<std::thread> threads;
  for (LoggingRank& rank : ranks) {
    threads.emplace_back([&] {
      const auto plugins = RankPlugins::Create(selection, rank.context);
      if (!plugins.ok()) rank.log = plugins.status().message();
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const LoggingRank& rank : ranks) {
    EXPECT_EQ(rank.log,
              "+test_ops\n+test_comm on cpu\n+plain_opt on cpu\ncredit 4 order ready\n"
              "+test_sched on cpu\n-test_sched\n-plain_opt\n-test_comm\n-test_ops\n");
  }
}

TEST_F(RankPluginsTest, NamesThePluginThatFails) {
  EXPECT_EQ(Refusal(folder_.Choose("faulty", "fault", "error")),
            "plugin 'faulty': there is no such device");
  EXPECT_EQ(Refusal(folder_.Choose("faulty", "fault", "null")),
            "plugin 'faulty': its create function reported success and made no object");
  EXPECT_EQ(rank_.log.find("test_sched"), std::string::npos) << "the scheduler comes after hooks";
  auto chosen = Good();
  chosen[1] = folder_.Choose("no_device_ops");
  EXPECT_STREQ(RankPlugins::Create(*Assign(chosen), rank_.context).status().message(),
               "plugin 'no_device_ops' says device 'cpu' and brings none");
}

TEST_F(RankPluginsTest, NamesTheUnresolvedSymbol) {
  const PluginChoice choice = folder_.Choose("unresolved");
  EXPECT_EQ(RefusalOfFile(choice), "plugin 'unresolved' cannot be loaded: " + choice.entry.path +
                                       ": undefined symbol: engine_fixture_defined_nowhere");
  EXPECT_FALSE(folder_.Initialised("unresolved"));
}

TEST_F(RankPluginsTest, NoticesAFileThatChangedAfterItWasChecked) {
  const PluginChoice checked = folder_.Choose("test_hook");
  std::filesystem::remove(checked.entry.path);
  EXPECT_THAT(RefusalOfFile(checked), HasSubstr("cannot open shared object file"));
  std::filesystem::copy_file(ENGINE_FIXTURE_DIR "/libengine_other_hook.so", checked.entry.path);
  EXPECT_EQ(RefusalOfFile(checked), "plugin 'test_hook': " + checked.entry.path +
                                        " is not what it was when it was checked; start again");
}

TEST_F(RankPluginsTest, LoadsALibraryOfClangAndLld) {
  if (!std::filesystem::exists(ENGINE_FIXTURE_DIR "/libengine_clang_hook.so")) {
    GTEST_SKIP() << "clang++ or lld was not found when the tests were configured";
  }
  EXPECT_EQ(Refusal(folder_.Choose("clang_hook")), "");
  EXPECT_THAT(rank_.log, HasSubstr("+clang_hook"));
  EXPECT_THAT(plugins::ReadPluginFile(folder_.File("clang_hook")).compiler, HasSubstr("Clang"));
}

TEST(Views, PointToTheOwnedValues) {
  const auto layers = std::make_shared<const std::vector<LayerSpec>>(2);
  const std::vector<OwnedOption> owned = {
      {.name = "a", .type = OptionType::kInt, .integer = 3},
      {.name = "b", .type = OptionType::kEnum, .string = "word"},
      {.name = "c", .type = OptionType::kFloat, .number = 0.5},
      {.name = "d", .type = OptionType::kBool, .integer = 1},
      {.name = "e", .type = OptionType::kInts, .integers = {4, 5}},
      {.name = "f", .type = OptionType::kLayers, .layers = layers}};
  const std::vector<OptionValue> views = Views(owned);
  const Options options(views);
  EXPECT_EQ(options.Int("a"), 3);
  EXPECT_EQ(options.String("b"), "word");
  EXPECT_EQ(options.Float("c"), 0.5);
  EXPECT_TRUE(options.Bool("d"));
  EXPECT_EQ(options.Ints("e").data(), owned[4].integers.data());
  EXPECT_EQ(&options.Layers("f").front(), layers->data());
  EXPECT_EQ(options.Layers("f").size(), 2u);
}

}  // namespace
}  // namespace engine::plugin
