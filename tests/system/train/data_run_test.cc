// Runs over images and tokens in files. What the files hold here is made up; only their format is
// that of CIFAR-10 and of llm.c.

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/system/train/run_test.h"
#include "tests/unit/data/cifar10_bytes.h"
#include "tests/unit/data/token_bytes.h"

namespace engine::testing {
namespace {

using ImageRun = RunTest;

TEST_F(ImageRun, AugmentedImagesAreThoseOfOneRank) {
  WriteCifar(folder_);
  // 20 images in steps of 6, the last one of 2.
  const std::string config = "seed: 3 model { mlp { hidden: [8] } } data { cifar10 { path: \"" +
                             folder_.path().native() +
                             "\" } }\n"
                             "train { steps: 12 global_batch: 6 learning_rate { base: 0.01 } }\n"
                             "plugins: [\"tcp\", \"fifo_sched\", \"sgd\", \"cpu_ops\"]\n"
                             "cpu_ops { threads: 1 }\n";
  const std::vector<std::string> augmented = {"data.augment.crop_padding=4",
                                              "data.augment.flip=true"};
  const Training one = TrainWithThreads(config, 1, augmented);
  ASSERT_EQ(one.losses.size(), 12u);
  ExpectSameRun(TrainWithThreads(config, 3, augmented), one, kRounding, "three ranks");
  ASSERT_EQ(one.evaluations.size(), 1u);
  EXPECT_EQ(one.evaluations[0].targets, 4);
  const Training plain = TrainWithThreads(config, 1);
  for (size_t i = 0; i < 12; ++i) EXPECT_NE(plain.losses[i], one.losses[i]) << "step " << i + 1;
}

using TokenRun = RunTest;

TEST_F(TokenRun, EndsWithTheStepThatHasSeenTheTokens) {
  std::mt19937 random(11);
  std::vector<int> tokens(200);
  for (int& token : tokens) token = static_cast<int>(random() % 5) + 700;
  folder_.Write("x_train_000001.bin", TokenBytes(tokens));
  folder_.Write("x_val_000000.bin", TokenBytes(std::vector<int>(17, 701)));
  // 24 samples of 8 tokens, an epoch of 5 steps.
  const std::string config =
      "seed: 3 model { gpt { layers: 1 width: 8 heads: 2 } } data { tokens { path: \"" +
      folder_.path().native() +
      "\" context: 8 vocabulary: 800 } }\n"
      "train { tokens: 320 global_batch: 5 learning_rate { base: 0.01 } }\n"
      "output { sample_bytes: 9 }\n"
      "plugins: [\"tcp\", \"fifo_sched\", \"adamw\", \"cpu_ops\"] cpu_ops { threads: 1 }\n";
  // 320 targets are 40 samples: an epoch of 24 in 5 steps, and 16 more in 4.
  const Training one = TrainWithThreads(config, 1);
  ASSERT_EQ(one.losses.size(), 9u);
  EXPECT_EQ(one.samples, (std::vector<int64_t>{5, 5, 5, 5, 4, 5, 5, 5, 5}));
  EXPECT_LT(one.losses.back(), one.losses.front()) << "only five tokens occur";
  ASSERT_EQ(one.evaluations.size(), 1u);
  EXPECT_EQ(one.evaluations[0].targets, 16);
  ExpectSameRun(TrainWithThreads(config, 2), one, kRounding, "two ranks");
  EXPECT_EQ(TrainWithThreads(config, 1, {"train.tokens=321"}).losses.size(), 9u);
  EXPECT_EQ(TrainWithThreads(config, 1, {"train.tokens=353"}).losses.size(), 10u);
}

}  // namespace
}  // namespace engine::testing
