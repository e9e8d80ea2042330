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

class ProfileRunTest : public LinkTest {
 protected:
  // The trained parameters, as rank 0 wrote them.
  std::unique_ptr<checkpoint::SafetensorsFile> Train(const std::string& scheduler) {
    const std::string config =
        folder_.Write("run.pbtxt", ValueOf(ProfileConfig("vgg16", SmallProfile(scheduler))));
    const std::string checkpoint = folder_ / (scheduler + ".safetensors");
    std::vector<std::unique_ptr<ProbeProcess>> ranks;
    for (int rank = 0; rank < kRanks; ++rank) {
      ranks.push_back(StartRank(*hosts_, rank,
                                {config, "--set", "output.checkpoint=" + checkpoint, "--set",
                                 "train.learning_rate.base=0.0009765625"}));
    }
    for (auto& rank : ranks) EXPECT_EQ(rank->Wait(), 0) << scheduler << ":\n" << rank->output();
    return ValueOf(checkpoint::SafetensorsFile::Open(checkpoint));
  }

  std::unique_ptr<LinkedHosts> hosts_;

 private:
  engine::testing::TempFolder folder_;
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
  const auto profile = ValueOf(FindProfile("vgg16"));
  const size_t layers = profile.layers.size();
  for (size_t id = 0; id < layers; ++id) {
    const std::string name = profile.layers[layers - 1 - id].name;  // ids are in forward order
    const auto weight = ValueOf(file.Find(name + ".weight"));
    for (int64_t i = 0; i < weight.count(); ++i) {
      ASSERT_EQ(weight.f32()[i], Expected(id, static_cast<uint32_t>(i))) << name << " " << i;
    }
  }
}

TEST_F(ProfileRunTest, EverySchedulerTrainsTheSameParametersToTheBit) {
  hosts_ = ValueOf(LinkedHosts::Create({.hosts = kRanks, .rate = "200mbit"}));
  for (const char* scheduler : {"sequential_sched", "fifo_sched", "priority_sched"}) {
    SCOPED_TRACE(scheduler);
    ExpectTrained(*Train(scheduler));
  }
  const auto counters = ValueOf(hosts_->Counters());
  const auto facts = ValueOf(GetProfileFacts("vgg16", SmallProfile("fifo_sched")));
  // Three runs; each rank's gradients cross its own link and that of the other.
  EXPECT_GE(counters.sent_bytes,
            static_cast<uint64_t>(3 * kSteps * kRanks * 2 * facts.gradient_bytes));
}

}  // namespace
}  // namespace engine::bench
