#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "tests/support/expect_status.h"
#include "tests/unit/data/dataset_under_test.h"

namespace engine {
namespace {

using test::OpenedDataset;
using test::SplitView;

struct Samples {
  std::vector<std::vector<float>> inputs;
  std::vector<int32_t> targets;
  bool operator==(const Samples&) const = default;
};

Samples All(const SplitView& dataset) {
  Samples samples;
  for (int64_t i = 0; i < dataset.size(); ++i) {
    samples.inputs.emplace_back(static_cast<size_t>(dataset.input().shape.Count()));
    samples.targets.push_back(-1);
    EXPECT_TRUE(dataset.Get(0, i, samples.inputs.back().data(), &samples.targets.back()).ok());
  }
  return samples;
}

OpenedDataset Open(const test::DatasetOptions& options, uint64_t seed = 1) {
  return ValueOf(test::OpenDataset("synthetic", options, seed));
}

TEST(Synthetic, IsAFunctionOfTheSeed) {
  const test::DatasetOptions options{{"samples", "50"}, {"eval_samples", "20"}, {"shape", "2,5"}};
  const OpenedDataset pair = Open(options);
  EXPECT_EQ(pair.train->size(), 50);
  EXPECT_EQ(pair.eval->size(), 20);
  EXPECT_TRUE(pair.train->input().shape == (Shape{2, 5}));
  EXPECT_EQ(pair.train->target().shape.ndim, 0);
  EXPECT_EQ(pair.train->target().classes, 10);
  const Samples train = All(*pair.train), eval = All(*pair.eval);
  EXPECT_EQ(train, All(*Open(options).train));
  EXPECT_NE(train, All(*Open(options, 2).train));
  EXPECT_NE(train.inputs[0], train.inputs[1]);
  EXPECT_NE(train.inputs[0], eval.inputs[0]);
}

TEST(Synthetic, NumbersHaveMeanZeroAndDeviationOne) {
  const OpenedDataset pair = Open({{"samples", "1000"}, {"shape", "100"}});
  double sum = 0, squares = 0;
  for (const auto& input : All(*pair.train).inputs) {
    for (const float value : input) {
      sum += value;
      squares += value * value;
    }
  }
  EXPECT_NEAR(sum / 1e5, 0, 0.02);
  EXPECT_NEAR(squares / 1e5, 1, 0.02);
}

TEST(Synthetic, EveryClassComes) {
  const OpenedDataset pair = Open({{"samples", "1000"}, {"classes", "5"}});
  const Samples samples = All(*pair.train);
  for (int32_t c = 0; c < 5; ++c) {
    EXPECT_GT(std::count(samples.targets.begin(), samples.targets.end(), c), 50) << c;
  }
  EXPECT_EQ(*std::max_element(samples.targets.begin(), samples.targets.end()), 4);
}

// A perceptron, which has as many weights as the rule, learns it and is right on held-out samples;
// also when the rule sees only a part of the sample.
TEST(Synthetic, TheRuleCanBeLearned) {
  for (const int64_t width : {int64_t{16}, int64_t{200}}) {
    const OpenedDataset pair = Open({{"samples", "3000"},
                                     {"eval_samples", "500"},
                                     {"shape", std::to_string(width)},
                                     {"classes", "3"}});
    std::vector<std::vector<double>> weights(3, std::vector<double>(static_cast<size_t>(width)));
    const auto guess = [&](const std::vector<float>& input) {
      std::vector<double> scores;
      for (const auto& row : weights) {
        scores.push_back(std::inner_product(row.begin(), row.end(), input.begin(), 0.0));
      }
      return static_cast<int32_t>(std::max_element(scores.begin(), scores.end()) - scores.begin());
    };
    const Samples train = All(*pair.train), eval = All(*pair.eval);
    for (int epoch = 0; epoch < 10; ++epoch) {
      for (size_t i = 0; i < train.inputs.size(); ++i) {
        const int32_t guessed = guess(train.inputs[i]);
        if (guessed == train.targets[i]) continue;
        for (size_t j = 0; j < train.inputs[i].size(); ++j) {
          weights[static_cast<size_t>(train.targets[i])][j] += train.inputs[i][j];
          weights[static_cast<size_t>(guessed)][j] -= train.inputs[i][j];
        }
      }
    }
    int right = 0;
    for (size_t i = 0; i < eval.inputs.size(); ++i)
      right += guess(eval.inputs[i]) == eval.targets[i];
    EXPECT_GT(right, 425) << "of 500, width " << width;
  }
}

TEST(Synthetic, ShapesThatMakeNoSense) {
  for (const char* shape : {"1,1,1,1,1,1", "1073741824,1073741824"}) {
    EXPECT_THAT(test::OpenDataset("synthetic", {{"shape", shape}}),
                FailsWith(StatusCode::kConfig, ::testing::HasSubstr("data.synthetic.shape")));
  }
}

}  // namespace
}  // namespace engine
