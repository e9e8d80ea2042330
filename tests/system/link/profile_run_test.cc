// Whole runs of a profile across linked hosts: that ranks find each other there without being told
// addresses, that no scheduler changes a bit of the result, and that the result is the right one.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>

#include "app/checkpoint/safetensors.h"
#include "bench/profile/profile.h"
#include "plugins/profile_ops/numbers.h"
#include "tests/support/expect_status.h"
#include "tests/support/temp_folder.h"
#include "tests/system/link/link_test.h"

namespace engine::bench {
namespace {

using profile_ops::GradientAt;
using profile_ops::Hash;

constexpr int kRanks = 2;
constexpr int64_t kSteps = 4;
constexpr uint64_t kSeed = 3;
// A power of two, and so is the number of samples of a step: all arithmetic is exact.
constexpr double kLearningRate = 1.0 / 1024;

constexpr char kConfig[] = ENGINE_TEST_SOURCE_DIR "/configs/profile_vgg16.pbtxt";
// Short sleeps of very different lengths on the two ranks; megabytes become kilobytes.
const std::vector<std::string> kSmall = {
    "train.learning_rate.base=0.0009765625", "train.steps=" + std::to_string(kSteps),
    "seed=" + std::to_string(kSeed),         "profile_ops.time_scale=0.1",
    "profile_ops.size_scale=0.001953125",    "profile_ops.jitter=0.9"};

class ProfileRunTest : public LinkTest {
 protected:
  // The trained parameters, as rank 0 wrote them.
  std::unique_ptr<checkpoint::SafetensorsFile> Train(const std::string& scheduler) {
    const std::string checkpoint = folder_ / (scheduler + ".safetensors");
    std::vector<std::unique_ptr<ProbeProcess>> ranks;
    for (int rank = 0; rank < kRanks; ++rank) {
      std::vector<std::string> arguments = {kConfig, "--plugins", scheduler, "--set",
                                            "output.checkpoint=" + checkpoint};
      for (const std::string& value : kSmall) arguments.insert(arguments.end(), {"--set", value});
      ranks.push_back(StartRank(*hosts_, rank, arguments));
    }
    for (auto& rank : ranks) EXPECT_EQ(rank->Wait(), 0) << scheduler << ":\n" << rank->output();
    return ValueOf(checkpoint::SafetensorsFile::Open(checkpoint));
  }

  std::unique_ptr<LinkedHosts> hosts_;

 private:
  engine::test::TempFolder folder_;
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

// The bytes of all parameters, each of which is as the formula has it.
int64_t ExpectTrained(const checkpoint::SafetensorsFile& file) {
  const auto config = ValueOf(config::Config::Load({.text = Profiles().at("vgg16"),
                                                    .origin = kConfig,
                                                    .overrides = kSmall,
                                                    .plugin_folders = {ENGINE_TEST_PLUGIN_DIR}}));
  for (const LayerSpec& layer : *config.plugins().model.options.at(0).layers) {
    const std::string name = std::string(layer.name) + ".weight";
    const auto id = static_cast<uint64_t>(Options(layer.attributes).Int("id"));
    const auto weight = ValueOf(file.Find(name));
    for (int64_t i = 0; i < weight.count(); ++i) {
      EXPECT_EQ(weight.f32()[i], Expected(id, static_cast<uint32_t>(i))) << name << " " << i;
    }
  }
  return FactsOf(config)->gradient_bytes;
}

TEST_F(ProfileRunTest, EverySchedulerTrainsTheSameParametersToTheBit) {
  hosts_ = ValueOf(LinkedHosts::Create({.hosts = kRanks, .rate = "200mbit"}));
  int64_t bytes = 0;
  for (const char* scheduler : {"sequential_sched", "fifo_sched", "priority_sched"}) {
    SCOPED_TRACE(scheduler);
    bytes += ExpectTrained(*Train(scheduler));
  }
  // Each rank's gradients cross its own link and that of the other.
  EXPECT_GE(ValueOf(hosts_->Counters()).sent_bytes,
            static_cast<uint64_t>(kSteps * kRanks * 2 * bytes));
}

}  // namespace
}  // namespace engine::bench
