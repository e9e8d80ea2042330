// Every scheduler trains to the bits of the one that sends everything after backward, with compute
// that takes a random time in each layer, step and rank, and steps that run into each other.

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/system/train/run_test.h"

namespace engine::test {
namespace {

// Arithmetic whose gradients depend on the parameters, with pauses between: a stale or torn
// parameter shows in the weights of all later steps.
std::string Config(const std::string& scheduler) {
  std::string text = "seed: 5 model { net {\n";
  for (int block = 0; block < 4; ++block) {
    text +=
        "layer { linear { units: 24 } } layer { relu {} }\n"
        "layer { profile_layer { id: " +
        std::to_string(block) + " forward_us: 40 backward_us: 60 parameters: 64 } }\n";
  }
  return text +
         "layer { linear { units: 4 } } } }\n"
         "data { synthetic { samples: 64 eval_samples: 8 shape: 12 classes: 4 } }\n"
         "train { global_batch: 7 learning_rate { base: 0.001 } evaluate_every: 60 }\n"
         "plugins: [\"tcp\", \"" +
         scheduler +
         "\", \"sgd\", \"cpu_ops\", \"profile_ops\"]\n"
         "sgd { momentum: 0.9 } profile_ops { jitter: 0.9 } cpu_ops { threads: 1 }\n";
}

struct Variant {
  const char* name;
  std::vector<std::string> overrides;
};

// Buckets of a few hundred bytes, so that a step has many of them in every form: cut, fused, alone.
const std::vector<Variant> kVariants = {
    {"fifo_sched", {"fifo_sched.fuse_bytes=1000", "fifo_sched.slice_bytes=600"}},
    {"priority_sched",
     {"priority_sched.fuse_bytes=300", "priority_sched.slice_bytes=600",
      "priority_sched.credit_bytes=1500"}},
    {"dear_sched", {"dear_sched.group_bytes=2000"}},
    {"sequential_sched", {"train.shard_optimizer=true"}},
    {"fifo_sched", {"train.shard_optimizer=true", "fifo_sched.slice_bytes=600"}},
    {"priority_sched", {"train.shard_optimizer=true", "priority_sched.slice_bytes=600"}},
    {"dear_sched", {"train.shard_optimizer=true"}},
};

class SchedulerParity : public RunTest {
 protected:
  void AllGiveTheBitsOfTheSequentialOne(size_t steps) {
    const std::string steps_of_run = "train.steps=" + std::to_string(steps);
    const Training expected = Train(Config("sequential_sched"), {2}, "expected", {steps_of_run});
    ASSERT_EQ(expected.losses.size(), steps);
    for (const Variant& variant : kVariants) {
      std::vector<std::string> overrides = variant.overrides;
      overrides.push_back(steps_of_run);
      const Training run = Train(Config(variant.name), {2}, "run", overrides);
      const std::string what =
          std::string(variant.name) + " " + ::testing::PrintToString(variant.overrides);
      ExpectSameRun(run, expected, 0, what);
      EXPECT_EQ(Tensors("run"), Tensors("expected")) << what;
    }
  }
};

TEST_F(SchedulerParity, AllGiveTheBitsOfTheSequentialOneAfterAHundredAndFiftySteps) {
  AllGiveTheBitsOfTheSequentialOne(150);
}

TEST_F(SchedulerParity, AllGiveTheBitsOfTheSequentialOneAfterAThousandSteps) {
  AllGiveTheBitsOfTheSequentialOne(1000);
}

}  // namespace
}  // namespace engine::test
