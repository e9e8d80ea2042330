// The real cuda_ops on a machine without a GPU: that it loads, shows one symbol, needs no driver to
// be loaded, and says in one sentence why it cannot be used. No fakes.
#include <dlfcn.h>
#include <gmock/gmock.h>

#include <array>
#include <cstdio>
#include <string>

#include "tests/support/engine_process.h"
#include "tests/support/temp_folder.h"

namespace engine::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

std::string OutputOf(const std::string& command) {
  std::string text;
  FILE* const pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return text;
  std::array<char, 4096> buffer;
  while (const size_t size = fread(buffer.data(), 1, buffer.size(), pipe)) {
    text.append(buffer.data(), size);
  }
  EXPECT_EQ(pclose(pipe), 0) << command;
  return text;
}

TEST(CudaLoad, ShowsTheDescriptorAndNothingElse) {
  const std::string symbols = OutputOf(NM " -D --defined-only " CUDA_PLUGIN);
  EXPECT_THAT(symbols, HasSubstr(" engine_plugin_v1"));
  EXPECT_EQ(std::count(symbols.begin(), symbols.end(), '\n'), 1) << symbols;
}

TEST(CudaLoad, NeedsTheRuntimeAndNoDriver) {
  const std::string needed = OutputOf(READELF " -d " CUDA_PLUGIN);
  EXPECT_THAT(needed, HasSubstr("[libcudart.so."));
  EXPECT_THAT(needed, HasSubstr("[libcublasLt.so."));
  for (const char* absent : {"[libcuda.so", "[libcudnn", "[libnccl", "[libcublas.so"}) {
    EXPECT_THAT(needed, Not(HasSubstr(absent)));
  }
}

TEST(CudaLoad, LoadsAndUnloads) {
  void* library = dlopen(CUDA_PLUGIN, RTLD_NOW | RTLD_LOCAL);
  ASSERT_NE(library, nullptr) << dlerror();
  EXPECT_NE(dlsym(library, "engine_plugin_v1"), nullptr);
  EXPECT_EQ(dlclose(library), 0);
  EXPECT_EQ(dlopen(CUDA_PLUGIN, RTLD_NOW | RTLD_NOLOAD), nullptr) << "it stays in memory";
}

// Where there is a driver this is not the place to run it: tests/gpu is.
TEST(CudaLoad, WithoutADriverARunEndsWithOneSentence) {
  if (void* driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL)) {
    dlclose(driver);
    GTEST_SKIP() << "this machine has a driver";
  }
  TempFolder folder;
  folder.Write("run.pbtxt",
               "model { mlp { hidden: [16] } } data { synthetic {} }\n"
               "train { steps: 1 global_batch: 8 }\n"
               "plugins: [\"null\", \"fifo_sched\", \"sgd\", \"cuda_ops\"]\n");
  const Outcome outcome = RunEngine(folder.path(), {"run", "run.pbtxt"});
  EXPECT_EQ(outcome.exit_code, 79);
  EXPECT_EQ(outcome.out, "");
  EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("needs an NVIDIA driver for CUDA"));
  EXPECT_THAT(outcome.err, HasSubstr("or choose cpu_ops"));
}

}  // namespace
}  // namespace engine::testing
