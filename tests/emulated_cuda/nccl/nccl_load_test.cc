// The plugin as it is delivered, without fakes: what it needs, what it shows, and what it says on a
// machine that has not everything.
#include <gmock/gmock.h>

#include <array>
#include <cstdio>
#include <fstream>
#include <string>

#include "tests/conformance/plugin_under_test.h"

namespace engine::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

std::string OutputOf(const std::string& command) {
  std::string output;
  FILE* const pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return output;
  std::array<char, 4096> buffer;
  while (const size_t size = fread(buffer.data(), 1, buffer.size(), pipe)) {
    output.append(buffer.data(), size);
  }
  EXPECT_EQ(pclose(pipe), 0) << command;
  return output;
}

TEST(NcclLoad, NeedsNeitherTheDriverNorNccl) {
  const std::string dynamic = OutputOf(READELF " -d " NCCL_PLUGIN);
  EXPECT_THAT(dynamic, HasSubstr("libcudart.so."));
  EXPECT_THAT(dynamic, Not(HasSubstr("libcuda.so")));
  EXPECT_THAT(dynamic, Not(HasSubstr("libnccl")));
}

TEST(NcclLoad, ExportsItsDescriptorAndNothingElse) {
  const std::string symbols = OutputOf(NM " -D --defined-only --format=posix " NCCL_PLUGIN);
  EXPECT_EQ(std::count(symbols.begin(), symbols.end(), '\n'), 1) << symbols;
  EXPECT_EQ(symbols.rfind("engine_plugin_v1 ", 0), 0u) << symbols;
}

TEST(NcclLoad, SaysWhatIsMissingOnAMachineWithoutADriver) {
  if (std::ifstream("/proc/driver/nvidia/version").good()) GTEST_SKIP() << "there is a driver here";
  const auto plugin = PluginUnderTest::Load(NCCL_PLUGIN);
  ASSERT_TRUE(plugin.ok()) << plugin.status().message();
  SingleHost host;
  const Status status = plugin->Create<Communicator>(host).status();
  EXPECT_EQ(status.code(), StatusCode::kPlugin);
  EXPECT_THAT(status.message(),
              AllOf(HasSubstr("no driver"), HasSubstr("install the driver"), HasSubstr("tcp")));
}

}  // namespace
}  // namespace engine::test
