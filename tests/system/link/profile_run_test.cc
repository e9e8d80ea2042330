// Whole runs of a profile across linked hosts: that ranks find each other there without being told
// addresses, that no scheduler changes a bit of the result, and that the result is the right one.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <memory>

#include "app/checkpoint/safetensors.h"
#include "bench/link/linked_hosts.h"
#include "bench/profile/profile.h"
#include "plugins/profile_ops/numbers.h"
#include "tests/support/probe_process.h"
#include "tests/system/link/why_not.h"

namespace engine::bench {
namespace {

namespace fs = std::filesystem;
using profile_ops::GradientAt;
using profile_ops::Hash;

constexpr int kRanks = 2;
constexpr int64_t kSteps = 4;
constexpr uint64_t kSeed = 3;
// A power of two, and so is the number of samples of a step: all arithmetic is exact.
constexpr double kLearningRate = 1.0 / 1024;

// Short sleeps of very different lengths on the two ranks; megabytes become kilobytes.
ProfileOptions SmallProfile(const std::string& scheduler) {
  return {.time_scale = 0.1,
          .bytes_scale = 1.0 / 512,
          .jitter = 0.9,
          .steps = kSteps,
          .seed = kSeed,
          .communicator = "tcp",
          .scheduler = scheduler};
}

class ProfileRunTest : public testing::Test {
 protected:
  void SetUp() override {
    const std::string reason = WhyNoNamespaces();
    if (!reason.empty()) GTEST_SKIP() << reason;
    folder_ = fs::path(testing::TempDir()) / ("engine_profile_run_" + std::to_string(getpid()));
    fs::create_directories(folder_);
    auto hosts = LinkedHosts::Create({.hosts = kRanks, .rate = "200mbit"});
    ASSERT_TRUE(hosts.ok()) << hosts.status().message();
    hosts_ = std::move(*hosts);
  }
  void TearDown() override {
    if (!folder_.empty()) fs::remove_all(folder_);
  }

  // The trained parameters, as rank 0 wrote them.
  std::unique_ptr<checkpoint::SafetensorsFile> Train(const std::string& scheduler) {
    const auto config = ProfileConfig("vgg16", SmallProfile(scheduler));
    EXPECT_TRUE(config.ok()) << config.status().message();
    const std::string path = folder_ / (scheduler + ".pbtxt");
    std::ofstream(path) << *config;
    const std::string checkpoint = folder_ / (scheduler + ".safetensors");
    std::vector<std::unique_ptr<ProbeProcess>> ranks;
    for (int rank = 0; rank < kRanks; ++rank) {
      std::vector<std::string> command = hosts_->CommandPrefix(rank);
      command.insert(
          command.end(),
          {ENGINE_TEST_BINARY, "run", path, "--plugin-path", ENGINE_TEST_PLUGIN_DIR, "--set",
           "output.checkpoint=" + checkpoint, "--set", "train.learning_rate.base=0.0009765625"});
      ranks.push_back(std::make_unique<ProbeProcess>(command, Environment(rank)));
    }
    for (auto& rank : ranks) EXPECT_EQ(rank->Wait(), 0) << scheduler << ":\n" << rank->output();
    auto file = checkpoint::SafetensorsFile::Open(checkpoint);
    EXPECT_TRUE(file.ok()) << file.status().message();
    return file.ok() ? std::move(*file) : nullptr;
  }

  std::unique_ptr<LinkedHosts> hosts_;

 private:
  std::map<std::string, std::string> Environment(int rank) const {
    return {{"RANK", std::to_string(rank)},
            {"WORLD_SIZE", std::to_string(kRanks)},
            {"LOCAL_RANK", "0"},
            {"LOCAL_WORLD_SIZE", "1"},
            {"MASTER_PORT", "29500"},
            {"MASTER_ADDR", hosts_->Address(0)}};
  }

  fs::path folder_;
};

// Of one parameter: from 0, by each step's gradient.
float Expected(uint64_t layer, uint32_t i) {
  double value = 0;
  for (int64_t step = 1; step <= kSteps; ++step) {
    const auto key = static_cast<uint32_t>(Hash(kSeed, layer, static_cast<uint64_t>(step)));
    value -= kLearningRate * static_cast<double>(GradientAt(key, i));
  }
  return static_cast<float>(value);
}

void ExpectTrained(const checkpoint::SafetensorsFile& file) {
  const auto profile = FindProfile("vgg16");
  ASSERT_TRUE(profile.ok());
  const size_t layers = profile->layers.size();
  for (size_t id = 0; id < layers; ++id) {
    const std::string name = profile->layers[layers - 1 - id].name;  // ids are in forward order
    const auto weight = file.Find(name + ".weight");
    ASSERT_TRUE(weight.ok()) << weight.status().message();
    for (int64_t i = 0; i < weight->count(); ++i) {
      ASSERT_EQ(weight->f32()[i], Expected(id, static_cast<uint32_t>(i))) << name << " " << i;
    }
  }
}

TEST_F(ProfileRunTest, EverySchedulerTrainsTheSameParametersToTheBit) {
  for (const char* scheduler : {"sequential_sched", "fifo_sched", "priority_sched"}) {
    SCOPED_TRACE(scheduler);
    const auto trained = Train(scheduler);
    ASSERT_NE(trained, nullptr);
    ExpectTrained(*trained);
  }
  const auto counters = hosts_->Counters();
  ASSERT_TRUE(counters.ok()) << counters.status().message();
  const auto facts = GetProfileFacts("vgg16", SmallProfile("fifo_sched"));
  ASSERT_TRUE(facts.ok());
  // Three runs; each rank's gradients cross its own link and that of the other.
  EXPECT_GE(counters->sent_bytes,
            static_cast<uint64_t>(3 * kSteps * kRanks * 2 * facts->gradient_bytes));
}

}  // namespace
}  // namespace engine::bench
