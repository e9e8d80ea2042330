// What every plugin must hold to, whatever its kind.
#include <gtest/gtest.h>

#include "tools/conform/contract.h"
#include "tools/conform/subject.h"

namespace engine::conform {
namespace {

TEST(Plugin, DescribesItself) {
  CONTRACT(SHOULD, "engine/plugin.h", "A plugin has a version and one line of doc.");
  const plugins::PluginFile& file = UnderTest().plugin.file();
  EXPECT_NE(file.version, "");
  EXPECT_NE(file.doc, "");
}

}  // namespace
}  // namespace engine::conform
