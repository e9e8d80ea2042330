// The real MNIST images and tiny Shakespeare, when they are there: ENGINE_TEST_DATA names a folder
// with mnist10k/ and tinyshakespeare/.

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "tests/unit/data/dataset_under_test.h"

namespace engine {
namespace {

class RealData : public ::testing::Test {
 protected:
  void SetUp() override {
    const char* folder = std::getenv("ENGINE_TEST_DATA");
    if (folder == nullptr || !std::filesystem::is_directory(folder)) {
      GTEST_SKIP() << "ENGINE_TEST_DATA names no folder with the real data sets";
    }
    folder_ = folder;
  }

  std::string folder_;
};

TEST_F(RealData, TenThousandMnistImages) {
  const std::string mnist = folder_ + "/mnist10k/";
  if (!std::filesystem::is_directory(mnist)) GTEST_SKIP() << mnist << " is absent";
  const auto pair =
      testing::OpenDataset("mnist", {{"images", mnist + "t10k-images-idx3-ubyte.gz"},
                                     {"labels", mnist + "t10k-labels-idx1-ubyte.gz"}});
  ASSERT_TRUE(pair.ok()) << pair.status().message();
  EXPECT_EQ((*pair).train->size(), 9000);
  EXPECT_EQ((*pair).eval->size(), 1000);
  ASSERT_TRUE((*pair).train->input().shape == (Shape{1, 28, 28}));

  // The first labels as published, and pixels that are normalised.
  const int32_t labels[] = {7, 2, 1, 0, 4, 1, 4, 9, 5, 9};
  std::vector<float> image(28 * 28);
  double sum = 0, squares = 0;
  for (int64_t i = 0; i < 1000; ++i) {
    int32_t target = -1;
    ASSERT_TRUE((*pair).train->Get(0, i, image.data(), &target).ok());
    if (i < 10) {
      EXPECT_EQ(target, labels[i]) << i;
    }
    for (const float value : image) {
      sum += value;
      squares += value * value;
    }
  }
  const double mean = sum / (1000.0 * 784.0);
  EXPECT_NEAR(mean, 0, 0.05);
  EXPECT_NEAR(std::sqrt(squares / (1000.0 * 784.0) - mean * mean), 1, 0.05);
}

TEST_F(RealData, TinyShakespeare) {
  const std::string path = folder_ + "/tinyshakespeare/input.txt";
  if (!std::filesystem::exists(path)) GTEST_SKIP() << path << " is absent";
  const auto pair = testing::OpenDataset("text", {{"path", path}});
  ASSERT_TRUE(pair.ok()) << pair.status().message();
  EXPECT_EQ((*pair).train->size(), (1115394 - 111539 - 64) / 64);
  EXPECT_EQ((*pair).eval->size(), (111539 - 1) / 64);

  const auto bytes = testing::OpenDataset("text", {{"path", path}, {"context", "1"}});
  ASSERT_TRUE(bytes.ok()) << bytes.status().message();
  std::string text;
  for (int64_t i = 0; i < 14; ++i) {
    int32_t input = 0, target = 0;
    ASSERT_TRUE((*bytes).train->Get(0, i, &input, &target).ok());
    text += static_cast<char>(input);
  }
  EXPECT_EQ(text, "First Citizen:");
}

}  // namespace
}  // namespace engine
