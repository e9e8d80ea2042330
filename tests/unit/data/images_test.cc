#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include "engine/ext/class_names.h"
#include "tests/unit/data/dataset_under_test.h"
#include "tests/unit/data/image_bytes.h"

namespace engine {
namespace {

using test::JpegBytes;
using test::OpenedDataset;
using test::PngBytes;
using ::testing::FloatNear;

class Images : public test::DatasetTest {
 protected:
  Images() : DatasetTest("images") {
    options_["path"] = folder_.path();
    options_["holdout"] = "0";
  }

  static std::vector<float> Sample(const OpenedDataset& opened, int64_t index, uint64_t epoch = 0,
                                   Split split = Split::kTrain) {
    std::vector<float> pixels(static_cast<size_t>(opened.dataset->info().inputs[0].shape.Count()));
    int32_t label = -1;
    const test::SplitView view(opened.dataset, split);
    EXPECT_TRUE(view.Get(epoch, index, pixels.data(), &label).ok());
    pixels.push_back(static_cast<float>(label));
    return pixels;
  }

  // Of a file that the only class has, with the label at the end.
  std::vector<float> Decoded(const std::string& content, const char* size, const char* channels) {
    folder_.Write("only/x.png", content);
    options_["size"] = size;
    options_["channels"] = channels;
    return Sample(Open(), 0);
  }

  // Every pixel of it has its own value, by channel, row and column.
  static std::string Ramp(int rows, int columns) {
    std::vector<uint8_t> pixels;
    for (int i = 0; i < rows * columns; ++i) {
      for (int c = 0; c < 3; ++c) pixels.push_back(static_cast<uint8_t>(3 * i + 60 * c));
    }
    return PngBytes(rows, columns, PNG_COLOR_TYPE_RGB, 8, pixels);
  }
};

TEST_F(Images, ClassesAreFoldersInTheirOrder) {
  folder_.Write("dog/1.png", Ramp(2, 2));
  folder_.Write("cat/b/2.PNG", Ramp(2, 2));
  folder_.Write("cat/1.jpeg", JpegBytes(2, 2, {8, 8, 8}));
  folder_.Write("cat/notes.txt", "no image");
  folder_.Write("cat/.x.png", "no image");
  options_["size"] = "2";
  const OpenedDataset opened = Open();
  const DatasetInfo info = opened.dataset->info();
  EXPECT_EQ(info.train_samples, 3);
  EXPECT_EQ(info.held_out_samples, 0);
  EXPECT_TRUE(info.inputs[0].shape == (Shape{3, 2, 2}));
  EXPECT_EQ(info.inputs[0].content, TensorContent::kImage);
  EXPECT_EQ(info.targets[0].classes, 2);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(Sample(opened, i).back(), i < 2 ? 0 : 1);
  EXPECT_EQ(std::string(Query<ClassNames>(*opened.dataset)->ClassName(0, 1)), "dog");
}

TEST_F(Images, FoldersThatAreNoClassesAreRefused) {
  folder_.Write("a/1.png", Ramp(2, 2));
  folder_.Write("b/1.gif", "no image");
  ExpectError(StatusCode::kBadData, HasSubstr("b: no image (.png, .jpg, .jpeg) in this folder"));
  folder_.Write("b/1.png", Ramp(2, 2));
  std::filesystem::create_directory_symlink("..", folder_ / "b/back");
  ExpectError(StatusCode::kBadData, HasSubstr("a link that leads back?"));
  std::filesystem::remove(folder_ / "b/back");
  folder_.Write("k\xf6ln/1.png", Ramp(2, 2));
  ExpectError(StatusCode::kBadData, HasSubstr("the class 'k?ln' is not UTF-8; rename its folder"));
}

TEST_F(Images, FoldersToTrainAndToEvaluateAndLists) {
  folder_.Write("train/a/1.png", Ramp(2, 2));
  folder_.Write("train/b/1.png", Ramp(2, 2));
  folder_.Write("val/b/2.png", Ramp(2, 2));
  options_["size"] = "2";
  OpenedDataset opened = Open();
  EXPECT_EQ(opened.train->size(), 2);
  ASSERT_EQ(opened.eval->size(), 1);
  EXPECT_EQ(Sample(opened, 0, 0, Split::kHeldOut).back(), 1);
  const std::string digest = opened.train->digest();
  folder_.Write("train/a/1.png", Ramp(2, 3));
  EXPECT_NE(Open().train->digest(), digest) << "a file of another size";

  options_["path"] = folder_.Write("train/list.csv", "file,class\na/1.png,\"x, y\"\nb/1.png,k\n");
  options_["eval_path"] = folder_ / "train/list.csv";
  opened = Open();
  EXPECT_EQ(opened.eval->size(), 2);
  EXPECT_EQ(Sample(opened, 0).back(), 1);
  EXPECT_EQ(std::string(Query<ClassNames>(*opened.dataset)->ClassName(0, 1)), "x, y");
  options_["eval_path"] = folder_.Write("train/more.csv", "b/1.png,new\n");
  ExpectError(StatusCode::kBadData, HasSubstr("its class 'new' has no image to train on"));
  options_["eval_path"] = folder_.Write("train/more.csv", "b/9.png,k\n");
  ExpectError(StatusCode::kBadData,
              HasSubstr("more.csv: line 1, column 1: b/9.png: cannot be read"));
}

TEST_F(Images, EveryKindOfPixelsBecomesGreyOrColours) {
  const auto values = [](const std::vector<float>& pixels) {
    std::vector<int> all;
    for (size_t i = 0; i + 1 < pixels.size(); ++i) {
      all.push_back(static_cast<int>(std::lrint(pixels[i] * 255)));
    }
    return all;
  };
  const auto grey = PngBytes(1, 2, PNG_COLOR_TYPE_GRAY, 8, {0, 255});
  EXPECT_THAT(values(Decoded(grey, "1,2", "1")), ElementsAre(0, 255));
  EXPECT_THAT(values(Decoded(grey, "1,2", "3")), ElementsAre(0, 255, 0, 255, 0, 255));
  const auto colour = PngBytes(1, 2, PNG_COLOR_TYPE_RGB, 8, {255, 0, 0, 1, 2, 3});
  EXPECT_THAT(values(Decoded(colour, "1,2", "3")), ElementsAre(255, 1, 0, 2, 0, 3));
  EXPECT_NEAR(Decoded(colour, "1,2", "1")[0], 0.299, 0.003);
  EXPECT_THAT(values(Decoded(PngBytes(1, 2, PNG_COLOR_TYPE_PALETTE, 8, {1, 0}), "1,2", "3")),
              ElementsAre(200, 10, 100, 20, 50, 30));
  EXPECT_THAT(values(Decoded(PngBytes(1, 1, PNG_COLOR_TYPE_RGBA, 8, {9, 8, 7, 0}), "1", "3")),
              ElementsAre(9, 8, 7));
  const auto deep = PngBytes(1, 2, PNG_COLOR_TYPE_GRAY, 16, {0x01, 0x02, 0xff, 0xff});
  EXPECT_THAT(Decoded(deep, "1,2", "1"),
              ElementsAre(FloatNear(258 / 65535.0f, 1e-7f), FloatNear(1, 1e-7f), 0));
  EXPECT_THAT(values(Decoded(PngBytes(1, 8, PNG_COLOR_TYPE_GRAY, 1, {0x50}), "1,8", "1")),
              ElementsAre(0, 255, 0, 255, 0, 0, 0, 0));
  for (const int value : values(Decoded(JpegBytes(20, 30, {200}), "5", "3"))) {
    EXPECT_NEAR(value, 200, 1);
  }
  EXPECT_NEAR(Decoded(JpegBytes(9, 9, {200, 40, 90}), "3", "3")[0] * 255, 200, 3);
}

// Against the formula in double precision: a triangle as wide as the larger of the two pixels.
double Bilinear(const std::vector<double>& line, int count, int i) {
  const double scale = static_cast<double>(line.size()) / count, reach = std::max(scale, 1.0);
  double sum = 0, weights = 0;
  for (size_t k = 0; k < line.size(); ++k) {
    const double apart = static_cast<double>(k) + 0.5 - (i + 0.5) * scale;
    const double weight = std::max(0.0, 1 - std::abs(apart) / reach);
    sum += weight * line[k];
    weights += weight;
  }
  return sum / weights;
}

TEST_F(Images, AreMadeSmallerAndLarger) {
  std::vector<uint8_t> pixels;
  for (int i = 0; i < 16; ++i) pixels.push_back(static_cast<uint8_t>((i * 37 + i * i) % 256));
  const std::string line = PngBytes(1, 16, PNG_COLOR_TYPE_GRAY, 8, pixels);
  const std::vector<double> source(pixels.begin(), pixels.end());
  options_["fit"] = "stretch";
  for (const int count : {3, 5, 16, 23}) {
    const std::vector<float> got = Decoded(line, ("1," + std::to_string(count)).c_str(), "1");
    for (int i = 0; i < count; ++i) {
      EXPECT_NEAR(got[static_cast<size_t>(i)] * 255, Bilinear(source, count, i), 1e-3) << count;
    }
  }
  options_["filter"] = "area";
  const std::vector<float> halves = Decoded(line, "1,8", "1");
  for (size_t i = 0; i < 8; ++i) {
    EXPECT_NEAR(halves[i] * 255, (source[2 * i] + source[2 * i + 1]) / 2, 1e-3);
  }
}

TEST_F(Images, TheMiddleIsCutOut) {
  // Of 4 x 7 pixels, made 4 pixels high, the columns from round(3 / 2) = 2 on.
  const std::vector<float> got = Decoded(Ramp(4, 7), "4", "3");
  EXPECT_FLOAT_EQ(got[0] * 255, 3 * 2);
  EXPECT_FLOAT_EQ(got[15] * 255, 3 * (3 * 7 + 5));
  // Of 4 x 4, made twice as large, pixel (3, 3): three parts of row and column 1, one of 2.
  options_["resize"] = "8";
  EXPECT_NEAR(Decoded(Ramp(4, 4), "2", "3")[0] * 255, 3 * (4 * 1.25 + 1.25), 1e-3);
}

TEST_F(Images, CropsDependOnSeedEpochAndIndexAlone) {
  folder_.Write("a/1.png", Ramp(9, 9));
  folder_.Write("a/2.png", Ramp(9, 9));
  options_["size"] = "3";
  for (const char* crop : {"random", "random_resized"}) {
    options_["crop"] = crop;
    options_["resize"] = "9";
    const OpenedDataset one = Open(), other = Open(), seeded = Open(2);
    options_["threads"] = "3";
    const OpenedDataset threads = Open();
    std::set<std::vector<float>> seen;
    int differ = 0;
    for (uint64_t epoch = 0; epoch < 20; ++epoch) {
      const auto sample = Sample(one, 1, epoch);
      EXPECT_EQ(Sample(other, 1, epoch), sample);
      EXPECT_EQ(Sample(threads, 1, epoch), sample);
      differ += Sample(seeded, 1, epoch) != sample ? 1 : 0;
      seen.insert(sample);
      for (const float pixel : sample) EXPECT_TRUE(pixel >= 0 && pixel <= 1.0001f);
    }
    EXPECT_GT(seen.size(), 10u) << crop;
    EXPECT_GT(differ, 10) << crop;
  }
}

TEST_F(Images, NormalisedByGivenOrMeasuredNumbers) {
  folder_.Write("a/1.png", PngBytes(1, 1, PNG_COLOR_TYPE_RGB, 8, {255, 0, 51}));
  folder_.Write("a/2.png", PngBytes(1, 1, PNG_COLOR_TYPE_RGB, 8, {0, 0, 51}));
  options_["size"] = "1";
  options_["mean"] = "0.5";
  options_["std"] = "0.5, 1, 0.1";
  EXPECT_THAT(Sample(Open(), 0), ElementsAre(1, -0.5, FloatNear(-3, 1e-5f), 0));
  options_["measure"] = "10";
  EXPECT_THAT(Sample(Open(), 1), ElementsAre(-1, 0, FloatNear(0, 1e-6f), 0))
      << "a channel of one value";
  options_["std"] = "0.5, 1";
  ExpectError(StatusCode::kConfig, HasSubstr("data.images.std has 2 numbers for images of 3"));
  options_["std"] = "one";
  ExpectError(StatusCode::kConfig, HasSubstr("data.images.std: 'one' is no number"));
  options_["std"] = "0";
  ExpectError(StatusCode::kConfig, HasSubstr("0 is not above 0"));
}

TEST_F(Images, AShareIsHeldOutByAHash) {
  for (int i = 0; i < 60; ++i) {
    folder_.Write((i % 2 ? "a/" : "b/") + std::to_string(i) + ".png", Ramp(1, 1));
  }
  options_["size"] = "1";
  options_["holdout"] = "0.25";
  const OpenedDataset opened = Open(3), other = Open(4);
  EXPECT_EQ(opened.train->size() + opened.eval->size(), 60);
  EXPECT_NEAR(static_cast<double>(opened.eval->size()), 15, 10);
  std::set<float> labels;
  for (int64_t i = 0; i < opened.eval->size(); ++i) {
    labels.insert(Sample(opened, i, 0, Split::kHeldOut).back());
  }
  EXPECT_EQ(labels.size(), 2u) << "of both classes, though the list is sorted";
}

TEST_F(Images, DamagedFilesAreNamed) {
  options_["size"] = "4";
  const std::string png = Ramp(40, 40), jpeg = JpegBytes(40, 40, {9, 200, 77});
  const auto expect_bad = [&](const std::string& content) {
    const std::string path = folder_.Write("a/x.png", content);
    std::vector<float> pixels(48);
    int32_t label = 0;
    const Status status = Open().train->Get(0, 0, pixels.data(), &label);
    EXPECT_EQ(status.code(), StatusCode::kBadData) << content.size();
    EXPECT_THAT(status.message(), AllOf(HasSubstr(path), HasSubstr("damaged or cannot be read")));
  };
  for (const std::string& whole : {png, jpeg}) {
    for (size_t size = 0; size + 2 < whole.size(); size += 7) expect_bad(whole.substr(0, size));
  }
  expect_bad("GIF89a");
  std::string wrong = png;
  wrong[50] = static_cast<char>(wrong[50] ^ 1);
  expect_bad(wrong);
  std::string huge = png;
  huge[16] = 0x7f;
  expect_bad(huge);
}

TEST_F(Images, FoldersAndOptionsThatMakeNoSense) {
  ExpectError(StatusCode::kBadData, AllOf(HasSubstr(options_["path"]), HasSubstr("no image")));
  options_["path"] = folder_ / "none";
  ExpectError(StatusCode::kMissingInput, HasSubstr("none"));
  options_["size"] = "4,4,4";
  ExpectError(StatusCode::kConfig, HasSubstr("size is one number or two"));
  options_["size"] = "4";
  options_["channels"] = "2";
  ExpectError(StatusCode::kConfig, HasSubstr("1 (grey) or 3"));
}

}  // namespace
}  // namespace engine
