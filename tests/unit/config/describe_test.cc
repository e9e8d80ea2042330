#include "app/config/describe.h"

#include "tests/support/matchers.h"
#include "tests/unit/plugin/plugin_folder.h"

namespace engine::config {
namespace {

TEST(Describe, ListsUsableBrokenAndShadowedPlugins) {
  plugin::PluginFolder first, second;
  first.Add("test_sched");
  first.Add("test_ops");
  second.Add("test_sched");
  second.Add("test_hook", "renamed");
  std::string needy = test::ReadWhole(second.Add("test_opt"));
  needy.replace(needy.find("libstdc++.so.6"), 7, "libgone");
  plugin::PluginFolder::WriteFile(second.File("test_opt"), needy);
  const std::string list = ListPlugins(plugins::PluginCatalog::Scan({first.path(), second.path()}));
  EXPECT_THAT(list, StartsWith("NAME        KIND       VERSION  WHAT"));
  EXPECT_THAT(list, HasSubstr("test_ops    ops (cpu)  1.0.0    ops of the tests          " +
                              first.File("test_ops") + "\n"));
  EXPECT_THAT(list, HasSubstr("\ncannot be loaded:\n  renamed  " + second.File("renamed") +
                              ": the plugin calls itself 'test_hook'"));
  EXPECT_THAT(list, HasSubstr("\n  test_opt  " + second.File("test_opt") + ": needs libgone++"));
  EXPECT_THAT(list, HasSubstr("\nshadowed by a file found earlier:\n  test_sched  " +
                              second.File("test_sched") + "  (by " + first.File("test_sched")));
  EXPECT_FALSE(first.Initialised("test_sched"));
}

TEST(Describe, SaysWhereNothingWasFound) {
  plugin::PluginFolder folder;
  EXPECT_EQ(ListPlugins(plugins::PluginCatalog::Scan({folder.path()})),
            "no plugins in " + folder.path() + "\n");
  EXPECT_EQ(ListPlugins(plugins::PluginCatalog::Scan({})), "no plugins: no folder is searched\n");
}

TEST(Describe, ShowsOptions) {
  plugin::PluginFolder folder;
  const std::string text = DescribePlugin(plugins::ReadPluginFile(folder.Add("test_sched")));
  EXPECT_THAT(text, StartsWith("test_sched 1.2.3: a scheduler of the tests\n"));
  EXPECT_THAT(text, HasSubstr("  kind      scheduler\n"));
  EXPECT_THAT(text, HasSubstr("  ABI       0.2, needs 0.2\n"));
  EXPECT_THAT(text, HasSubstr("\n  credit  int     4        1 .. 64           transfers in flight\n"
                              "  share   float   0.5      0 .. 1            of the link\n"
                              "  merge   bool    true                       small transfers\n"
                              "  order   enum    \"ready\"  ready | priority  of transfers\n"
                              "  label   string  \"\"                         any text\n"));
}

TEST(Describe, ShowsOpsWithAttributes) {
  plugin::PluginFolder folder;
  const std::string text = DescribePlugin(plugins::ReadPluginFile(folder.Add("test_ops")));
  EXPECT_THAT(text, HasSubstr("ops with their attributes\n"
                              "  linear\n"
                              "    units  int   required  1 .. 65536  outputs\n"
                              "    bias   bool  true                  added\n"
                              "  relu\n"
                              "  flatten\n"));
}

TEST(Describe, SaysWhyAPluginIsBroken) {
  plugin::PluginFolder folder;
  EXPECT_EQ(DescribePlugin(plugins::ReadPluginFile(folder.Add("no_symbol"))),
            "no_symbol cannot be loaded: " + folder.File("no_symbol") +
                ": exports no engine_plugin_v0; is it an engine plugin?\n");
}

}  // namespace
}  // namespace engine::config
