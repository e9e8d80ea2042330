#include "core/data/synthetic.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <vector>

namespace engine {
namespace {

struct Samples {
  std::vector<std::vector<float>> inputs;
  std::vector<int32_t> targets;
  bool operator==(const Samples&) const = default;
};

Samples All(const Dataset& dataset) {
  Samples samples;
  for (int64_t i = 0; i < dataset.info().size; ++i) {
    samples.inputs.emplace_back(static_cast<size_t>(dataset.info().input_shape.Count()));
    samples.targets.push_back(-1);
    EXPECT_TRUE(dataset.Get(0, i, samples.inputs.back().data(), &samples.targets.back()).ok());
  }
  return samples;
}

DatasetPair OpenOrFail(const SyntheticOptions& options) {
  auto pair = OpenSynthetic(options);
  EXPECT_TRUE(pair.ok()) << pair.status().message();
  return pair.ok() ? std::move(*pair) : DatasetPair{};
}

TEST(Synthetic, IsAFunctionOfTheSeed) {
  const DatasetPair pair = OpenOrFail({.samples = 50, .eval_samples = 20, .shape = {2, 5}});
  EXPECT_EQ(pair.train->info().size, 50);
  EXPECT_EQ(pair.eval->info().size, 20);
  EXPECT_TRUE(pair.train->info().input_shape == (Shape{2, 5}));
  EXPECT_EQ(pair.train->info().target_shape.ndim, 0);
  EXPECT_EQ(pair.train->info().classes, 10);
  const Samples train = All(*pair.train), eval = All(*pair.eval);
  EXPECT_EQ(train, All(*OpenOrFail({.samples = 50, .shape = {2, 5}}).train));
  EXPECT_NE(train, All(*OpenOrFail({.samples = 50, .shape = {2, 5}, .seed = 2}).train));
  EXPECT_NE(train.inputs[0], train.inputs[1]);
  EXPECT_NE(train.inputs[0], eval.inputs[0]);
}

TEST(Synthetic, NumbersHaveMeanZeroAndDeviationOne) {
  const DatasetPair pair = OpenOrFail({.samples = 1000, .shape = {100}});
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
  const DatasetPair pair = OpenOrFail({.samples = 1000, .classes = 5});
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
    const DatasetPair pair =
        OpenOrFail({.samples = 3000, .eval_samples = 500, .shape = {width}, .classes = 3});
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

TEST(Synthetic, OptionsThatMakeNoSense) {
  for (const SyntheticOptions& options :
       {SyntheticOptions{.samples = 0}, SyntheticOptions{.eval_samples = -1},
        SyntheticOptions{.classes = 0}, SyntheticOptions{.shape = {3, 0}},
        SyntheticOptions{.shape = {int64_t{1} << 30, int64_t{1} << 30, int64_t{1} << 30}}}) {
    const Status status = OpenSynthetic(options).status();
    EXPECT_EQ(status.code(), StatusCode::kConfig);
    EXPECT_THAT(status.message(), ::testing::HasSubstr("data.synthetic."));
  }
}

}  // namespace
}  // namespace engine
