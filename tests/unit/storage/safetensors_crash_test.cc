// A writer that is killed at any moment leaves the version before or the version after.

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "app/checkpoint/safetensors.h"
#include "tests/support/temp_folder.h"

namespace engine::checkpoint {
namespace {

using testing::TempFolder;

constexpr int kKills = 59;
constexpr int64_t kCount = 5000;

// Version v is a tensor full of v and the metadata "version": v.
Status WriteVersion(const std::string& path, int32_t version) {
  std::vector<int32_t> values(kCount, version);
  const std::vector<NamedTensor> tensors = {{"values", {values.data(), {kCount}, DType::kInt32}}};
  return WriteSafetensors(path, tensors, {{"version", std::to_string(version)}});
}

// The version in the file, or -1 when the file is no complete version.
int32_t ReadVersion(const std::string& path) {
  auto file = SafetensorsFile::Open(path);
  EXPECT_TRUE(file.ok()) << file.status().message();
  if (!file.ok()) return -1;
  auto values = (*file)->Find("values");
  if (!values.ok() || values->count() != kCount) return -1;
  const int32_t version = values->i32()[0];
  const bool same = std::all_of(values->i32(), values->i32() + kCount,
                                [version](int32_t value) { return value == version; });
  return same && (*file)->metadata().at("version") == std::to_string(version) ? version : -1;
}

TEST(SafetensorsCrash, AKilledWriterLeavesACompleteVersion) {
  TempFolder folder;
  const std::string path = folder / "model";
  ASSERT_TRUE(WriteVersion(path, 0).ok());
  std::mt19937 random(20240501);
  std::uniform_int_distribution<int> delay_us(0, 6000);
  int32_t newest = 0;
  for (int kill_count = 0; kill_count < kKills; ++kill_count) {
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      for (int32_t version = newest + 1;; ++version) {
        if (!WriteVersion(path, version).ok()) _exit(1);
      }
    }
    std::this_thread::sleep_for(std::chrono::microseconds(delay_us(random)));
    kill(child, SIGKILL);
    int state = 0;
    ASSERT_EQ(waitpid(child, &state, 0), child);
    ASSERT_TRUE(WIFSIGNALED(state)) << "the writer failed by itself";
    const int32_t version = ReadVersion(path);
    ASSERT_GE(version, newest) << "after kill " << kill_count;
    newest = version;
  }
  EXPECT_GT(newest, 0) << "no child has written anything";
  ASSERT_TRUE(WriteVersion(path, newest + 1).ok());
  const auto entries = std::filesystem::directory_iterator(folder.path());
  EXPECT_EQ(std::distance(begin(entries), end(entries)), 1) << "temporary files are left";
}

}  // namespace
}  // namespace engine::checkpoint
