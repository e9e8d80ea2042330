// The plugins for GPUs as they are delivered, without fakes: what they need, what they show, and what
// they say on a machine without a GPU.
#include <dlfcn.h>

#include <array>
#include <cstdio>
#include <string>

#include "tests/conformance/plugin_under_test.h"
#include "tests/support/matchers.h"

namespace engine::test {
namespace {

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

class CudaLoad : public ::testing::TestWithParam<const char*> {
 protected:
  const std::string path_ = PluginPaths({GetParam()}).front();
};

TEST_P(CudaLoad, ShowsTheDescriptorAndNothingElse) {
  const std::string symbols = OutputOf(NM " -D --defined-only --format=posix " + path_);
  EXPECT_EQ(std::count(symbols.begin(), symbols.end(), '\n'), 1) << symbols;
  EXPECT_EQ(symbols.rfind("engine_plugin_v0 ", 0), 0u) << symbols;
}

TEST_P(CudaLoad, NeedsTheRuntimeAndNeitherTheDriverNorWhatIsOpenedAtRunTime) {
  const std::string needed = OutputOf(READELF " -d " + path_);
  EXPECT_THAT(needed, HasSubstr("[libcudart.so."));
  for (const char* absent : {"[libcuda.so", "[libcudnn", "[libnccl", "[libcublas.so"}) {
    EXPECT_THAT(needed, Not(HasSubstr(absent)));
  }
}

TEST_P(CudaLoad, LoadsAndUnloads) {
  void* library = dlopen(path_.c_str(), RTLD_NOW | RTLD_LOCAL);
  ASSERT_NE(library, nullptr) << dlerror();
  EXPECT_EQ(dlclose(library), 0);
  EXPECT_EQ(dlopen(path_.c_str(), RTLD_NOW | RTLD_NOLOAD), nullptr) << "it stays in memory";
}

// Where there is a driver this is not the place to run them: tests/gpu is.
TEST_P(CudaLoad, SaysWhatIsMissingOnAMachineWithoutADriver) {
  if (void* driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL)) {
    dlclose(driver);
    GTEST_SKIP() << "this machine has a driver";
  }
  const auto plugin = PluginUnderTest::Load(path_);
  ASSERT_TRUE(plugin.ok()) << plugin.status().message();
  SingleHost host;
  const Status status = plugin->Create<Object>(host).status();
  EXPECT_EQ(status.code(), StatusCode::kPlugin);
  EXPECT_THAT(status.message(),
              AllOf(HasSubstr(GetParam()), HasSubstr("needs an NVIDIA driver for CUDA"),
                    HasSubstr("install the driver, or choose")));
}

INSTANTIATE_TEST_SUITE_P(, CudaLoad, ::testing::Values(CUDA_PLUGINS),
                         [](const auto& test) { return std::string(test.param); });

}  // namespace
}  // namespace engine::test
