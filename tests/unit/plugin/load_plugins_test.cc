#include "core/plugin/load_plugins.h"

#include <gmock/gmock.h>

#include <thread>

#include "core/plugin/option_value.h"
#include "tests/unit/plugin/plugin_folder.h"

namespace engine::plugin {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class LoadPluginsTest : public ::testing::Test {
 protected:
  // A fixture with the given option set and its other options at their defaults.
  PluginChoice Choose(const std::string& fixture, const std::string& option = "",
                      const std::string& value = "") {
    if (!std::filesystem::exists(folder_.File(fixture))) folder_.Add(fixture);
    PluginChoice choice{ReadPluginFile(folder_.File(fixture)), {}};
    EXPECT_TRUE(choice.entry.problem.ok()) << choice.entry.problem.message();
    for (const OptionSpec* spec : OptionsOf(choice.entry.options, "")) {
      const bool given = spec->name.view() == option;
      auto parsed = ParseOptionValue(*spec, given ? value : spec->default_value.view());
      if (parsed.ok()) choice.options.push_back(*parsed);
    }
    return choice;
  }

  std::vector<PluginChoice> Good() {
    return {Choose("test_sched"), Choose("test_ops"), Choose("test_comm"), Choose("plain_opt")};
  }

  Result<PluginSelection> Assign(const std::vector<PluginChoice>& chosen) {
    return AssignRoles(chosen, PluginCatalog::Scan({folder_.path()}));
  }

  Result<PluginSet> Create(const std::vector<PluginChoice>& chosen) {
    ENGINE_ASSIGN_OR_RETURN(const PluginSelection selection, Assign(chosen));
    const HostFactory host_of = [this](const std::string&) -> Host& { return host_; };
    return CreatePlugins(selection, host_of, [this](Device*) { host_.log += "device\n"; });
  }

  // The sentence that a choice beside the good ones is refused with.
  std::string Refusal(const PluginChoice& extra) {
    auto chosen = Good();
    chosen.push_back(extra);
    const auto set = Create(chosen);
    EXPECT_FALSE(set.ok());
    return set.status().message();
  }

  PluginFolder folder_;
  LogHost host_;
};

TEST_F(LoadPluginsTest, SortsIntoRoles) {
  auto chosen = Good();
  chosen.push_back(Choose("other_hook"));
  chosen.insert(chosen.begin(), Choose("extra_ops"));
  chosen.push_back(Choose("test_hook"));
  const auto selection = Assign(chosen);
  ASSERT_TRUE(selection.ok()) << selection.status().message();
  EXPECT_EQ(selection->communicator.entry.name, "test_comm");
  EXPECT_EQ(selection->scheduler.entry.name, "test_sched");
  EXPECT_EQ(selection->optimizer.entry.name, "plain_opt");
  ASSERT_EQ(selection->ops.size(), 2u);
  EXPECT_EQ(selection->ops[0].entry.name, "test_ops") << "the device comes first";
  ASSERT_EQ(selection->hooks.size(), 2u);
  EXPECT_EQ(selection->hooks[0].entry.name, "other_hook");
}

TEST_F(LoadPluginsTest, NamesConflictsAndGaps) {
  const auto sentence = [this](std::vector<PluginChoice> chosen) {
    const auto selection = Assign(chosen);
    EXPECT_EQ(selection.status().code(), StatusCode::kPlugin);
    return std::string(selection.status().message());
  };
  auto chosen = Good();
  chosen.push_back(Choose("other_comm"));
  EXPECT_EQ(sentence(chosen),
            "plugins 'test_comm' and 'other_comm' both fill the role 'communicator'; choose one");
  chosen = Good();
  chosen.push_back(chosen[0]);
  EXPECT_EQ(sentence(chosen), "plugin 'test_sched' is chosen twice");
  chosen = Good();
  chosen.push_back(Choose("clash_ops"));
  EXPECT_EQ(sentence(chosen), "plugins 'test_ops' and 'clash_ops' both offer the op 'relu'");
  chosen = Good();
  chosen.erase(chosen.begin() + 2);
  EXPECT_EQ(sentence(chosen),
            "no chosen plugin fills the role 'communicator'; found: other_comm, test_comm");
  EXPECT_THAT(sentence({Choose("extra_ops")}),
              HasSubstr("the role 'ops with a device'; found: test_ops"));
}

TEST_F(LoadPluginsTest, CreatesInOrderAndDestroysInReverse) {
  auto chosen = Good();
  chosen[0] = Choose("test_sched", "credit", "9");
  chosen.push_back(Choose("test_hook"));
  chosen.push_back(Choose("other_hook"));
  chosen.push_back(Choose("extra_ops"));
  {
    auto set = Create(chosen);
    ASSERT_TRUE(set.ok()) << set.status().message();
    EXPECT_TRUE(folder_.Initialised("test_ops")) << "else Initialised proves nothing elsewhere";
    EXPECT_NE(set->device, nullptr);
    EXPECT_EQ(*set->FindOp("linear"), set->ops[0].get());
    EXPECT_EQ(*set->FindOp("swish"), set->ops[1].get());
    const auto missing = set->FindOp("swihs");
    EXPECT_EQ(missing.status().code(), StatusCode::kConfig);
    EXPECT_STREQ(missing.status().message(),
                 "no chosen plugin offers the op 'swihs'; did you mean 'swish'?");
    EXPECT_EQ(std::exchange(host_.log, ""),
              "+test_ops\ndevice\n+extra_ops\n+test_comm\n+plain_opt\n+test_hook\n+other_hook\n"
              "credit 9 order ready\n+test_sched\n");
    PluginSet moved;
    moved = std::move(*set);
    EXPECT_EQ(host_.log, "");
  }
  EXPECT_EQ(
      host_.log,
      "-test_sched\n-other_hook\n-test_hook\n-plain_opt\n-test_comm\n-extra_ops\n-test_ops\n");
}

// Ranks as threads of one process load the same libraries at the same time.
TEST_F(LoadPluginsTest, ThreadsMayLoadAtTheSameTime) {
  const auto selection = Assign(Good());
  ASSERT_TRUE(selection.ok()) << selection.status().message();
  std::vector<LogHost> hosts(4);
  std::vector<std::thread> threads;
  for (LogHost& host : hosts) {
    threads.emplace_back([&] {
      const auto set = CreatePlugins(
          *selection, [&](const std::string&) -> Host& { return host; }, [](Device*) {});
      if (!set.ok()) host.log = set.status().message();
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const LogHost& host : hosts) {
    EXPECT_EQ(host.log,
              "+test_ops\n+test_comm\n+plain_opt\ncredit 4 order ready\n+test_sched\n"
              "-test_sched\n-plain_opt\n-test_comm\n-test_ops\n");
  }
}

TEST_F(LoadPluginsTest, NamesThePluginThatFails) {
  EXPECT_EQ(Refusal(Choose("faulty", "fault", "error")),
            "plugin 'faulty': there is no such device");
  EXPECT_EQ(Refusal(Choose("faulty", "fault", "null")),
            "plugin 'faulty': its create function reported success and made no object");
  EXPECT_EQ(host_.log.find("test_sched"), std::string::npos) << "the scheduler comes after hooks";
  auto chosen = Good();
  chosen[1] = Choose("no_device_ops");
  EXPECT_STREQ(Create(chosen).status().message(),
               "plugin 'no_device_ops' says device 'cpu' and brings none");
}

TEST_F(LoadPluginsTest, NamesTheUnresolvedSymbol) {
  const PluginChoice choice = Choose("unresolved");
  const std::string sentence = Refusal(choice);
  EXPECT_EQ(sentence, "plugin 'unresolved' cannot be loaded: " + choice.entry.path +
                          ": undefined symbol: engine_fixture_defined_nowhere");
  EXPECT_FALSE(folder_.Initialised("unresolved"));
}

TEST_F(LoadPluginsTest, NeverLoadsARefusedLibrary) {
  folder_.Add("test_hook", "renamed");
  const auto loaded = LoadedPlugin::Load(ReadPluginFile(folder_.File("renamed")));
  EXPECT_EQ(loaded.status().code(), StatusCode::kPlugin);
  EXPECT_THAT(loaded.status().message(), HasSubstr("plugin 'renamed': "));
  EXPECT_FALSE(folder_.Initialised("renamed"));
}

TEST_F(LoadPluginsTest, NoticesAFileThatChangedAfterItWasChecked) {
  const PluginChoice checked = Choose("test_hook");
  std::filesystem::remove(checked.entry.path);
  std::filesystem::copy_file(ENGINE_FIXTURE_DIR "/libengine_other_hook.so", checked.entry.path);
  EXPECT_STREQ(LoadedPlugin::Load(checked.entry).status().message(),
               ("plugin 'test_hook': " + checked.entry.path +
                " is not what it was when it was checked; start again")
                   .c_str());
}

TEST_F(LoadPluginsTest, NoticesAFileThatIsGone) {
  const PluginChoice checked = Choose("other_sched");
  std::filesystem::remove(checked.entry.path);
  EXPECT_THAT(LoadedPlugin::Load(checked.entry).status().message(),
              HasSubstr("cannot open shared object file"));
}

TEST_F(LoadPluginsTest, LoadsALibraryOfClangAndLld) {
  if (!std::filesystem::exists(ENGINE_FIXTURE_DIR "/libengine_clang_hook.so")) {
    GTEST_SKIP() << "clang++ or lld was not found when the tests were configured";
  }
  auto chosen = Good();
  chosen.push_back(Choose("clang_hook"));
  const auto set = Create(chosen);
  ASSERT_TRUE(set.ok()) << set.status().message();
  EXPECT_THAT(host_.log, HasSubstr("+clang_hook"));
}

TEST(Views, PointToTheOwnedValues) {
  const std::vector<OwnedOption> owned = {
      {.name = "a", .type = OptionType::kInt, .integer = 3},
      {.name = "b", .type = OptionType::kEnum, .string = "word"},
      {.name = "c", .type = OptionType::kFloat, .number = 0.5},
      {.name = "d", .type = OptionType::kBool, .integer = 1}};
  const std::vector<OptionValue> views = Views(owned);
  const Options options(views);
  EXPECT_EQ(options.Int("a"), 3);
  EXPECT_EQ(options.String("b"), "word");
  EXPECT_EQ(options.Float("c"), 0.5);
  EXPECT_TRUE(options.Bool("d"));
}

}  // namespace
}  // namespace engine::plugin
