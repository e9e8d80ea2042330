#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "tests/unit/data/dataset_under_test.h"
#include "tests/unit/data/idx_bytes.h"

namespace engine {
namespace {

using test::Gzip;
using test::IdxHeader;
using test::IdxImages;
using test::IdxLabels;
using test::SplitView;

class Mnist : public test::DatasetTest {
 protected:
  Mnist() : DatasetTest("mnist") {
    options_["images"] = folder_.Write("images", IdxImages(10));
    options_["labels"] = folder_.Write("labels.gz", Gzip(IdxLabels(10)));
  }
};

// Checks that sample `index` is image `image` of the small files.
void ExpectSample(const SplitView& dataset, int64_t index, int image) {
  float input[6] = {};
  int32_t target = -1;
  ASSERT_TRUE(dataset.Get(0, index, input, &target).ok());
  EXPECT_EQ(target, image % 10);
  for (int j = 0; j < 6; ++j) {
    EXPECT_FLOAT_EQ(input[j], ((10 * image + j) / 255.0f - 0.1307f) / 0.3081f);
  }
}

TEST_F(Mnist, HoldsOutTheLastShare) {
  options_["holdout"] = "0.3";
  const test::OpenedDataset pair = Open();
  const SplitView &train = *pair.train, &eval = *pair.eval;
  EXPECT_EQ(train.size(), 7);
  EXPECT_EQ(eval.size(), 3);
  EXPECT_TRUE(train.input().shape == (Shape{1, 2, 3}));
  EXPECT_EQ(train.input().dtype, DType::kFloat32);
  EXPECT_EQ(train.input().content, TensorContent::kImage);
  EXPECT_EQ(train.target().shape.ndim, 0);
  EXPECT_EQ(train.target().classes, 10);
  EXPECT_THAT(train.name(), HasSubstr(options_["images"]));
  EXPECT_EQ(train.digest(),
            "xxh3_128:84819ea5ee9af9d8ae00224439401e3a");  // as checkpoints of before have it
  for (int i = 0; i < 7; ++i) ExpectSample(train, i, i);
  for (int i = 0; i < 3; ++i) ExpectSample(eval, i, 7 + i);
}

TEST_F(Mnist, TakesHeldOutImagesFromTheirOwnFiles) {
  options_["eval_images"] = folder_.Write("eval_images", IdxImages(4));
  options_["eval_labels"] = folder_.Write("eval_labels", IdxLabels(4));
  const test::OpenedDataset pair = Open();
  EXPECT_EQ(pair.train->size(), 10);
  EXPECT_EQ(pair.eval->size(), 4);
  ExpectSample(*pair.eval, 3, 3);
}

TEST_F(Mnist, BadFilesAreRefused) {
  const std::string labels = options_["labels"];
  options_["labels"] = folder_.Write("nine", IdxLabels(9));
  ExpectError(StatusCode::kBadData,
              HasSubstr("9 labels, by the extent at offset 4, for the 10 images"));
  std::string wrong = IdxLabels(10);
  wrong[8 + 6] = 10;
  options_["labels"] = folder_.Write("ten", wrong);
  ExpectError(StatusCode::kBadData, HasSubstr("the label at offset 14 is 10"));
  options_["labels"] = options_["images"];
  ExpectError(StatusCode::kBadData, HasSubstr("3 instead of 1"));
  options_["labels"] = folder_ / "none";
  ExpectError(StatusCode::kMissingInput, HasSubstr(folder_ / "none"));

  options_["labels"] = folder_.Write("empty", IdxHeader({0}));
  options_["images"] = folder_.Write("no_images", IdxHeader({0, 28, 28}));
  ExpectError(StatusCode::kBadData, HasSubstr("there are no images"));
  options_["images"] = folder_.Write("no_pixels", IdxHeader({10, 0, 28}));
  ExpectError(StatusCode::kBadData, HasSubstr("there are no images"));
}

TEST_F(Mnist, HeldOutImagesOfAnotherSizeOrTypeAreRefused) {
  options_["eval_images"] = folder_.Write("other", IdxHeader({1, 3, 2}) + "012345");
  options_["eval_labels"] = folder_.Write("label", IdxLabels(1));
  ExpectError(StatusCode::kBadData, HasSubstr("another type or another size"));
  std::string is_signed = IdxHeader({1, 2, 3}) + "012345";
  is_signed[2] = 0x09;
  options_["eval_images"] = folder_.Write("signed", is_signed);
  ExpectError(StatusCode::kBadData, HasSubstr("another type or another size"));
}

TEST_F(Mnist, OptionsThatMakeNoSense) {
  options_["holdout"] = "0.96";
  ExpectError(StatusCode::kBadData, HasSubstr("are all held out"));
  options_["holdout"] = "0.1";
  options_["eval_images"] = options_["images"];
  ExpectError(StatusCode::kConfig, HasSubstr("both eval_images and eval_labels"));
}

TEST_F(Mnist, AnyNumberOfClasses) {
  std::string labels = IdxLabels(10);
  labels[8 + 3] = 9;
  options_["classes"] = "26";
  options_["labels"] = folder_.Write("letters", labels);
  EXPECT_EQ(Open().train->target().classes, 26);
  options_["classes"] = "0";
  // 12 images, and labels of int16 up to 11.
  std::string wide = IdxHeader({12});
  wide[2] = 0x0b;
  for (int i = 0; i < 12; ++i) wide += std::string(1, '\0') + static_cast<char>(i);
  options_["labels"] = folder_.Write("wide", wide);
  options_["images"] = folder_.Write("more", IdxImages(12));
  EXPECT_EQ(Open().train->target().classes, 12);
  options_["classes"] = "5";
  ExpectError(StatusCode::kBadData,
              ::testing::AllOf(HasSubstr("the label at offset 18 is 5"), HasSubstr("0 to 4")));
}

TEST_F(Mnist, RowsOfNumbersAndImagesOfSeveralChannels) {
  options_["holdout"] = "0";
  options_["labels"] = folder_.Write("labels", IdxLabels(1));
  std::string bytes = IdxHeader({1, 3});
  bytes[2] = 0x09;
  options_["images"] = folder_.Write("table", bytes + "\x01\xff\x05");
  test::OpenedDataset opened = Open();
  EXPECT_TRUE(opened.train->input().shape == Shape{3});
  EXPECT_EQ(opened.train->input().content, TensorContent::kNumbers);
  std::vector<float> got(3);
  int32_t label = -1;
  ASSERT_TRUE(opened.train->Get(0, 0, got.data(), &label).ok());
  EXPECT_THAT(got, ::testing::ElementsAre(1, -1, 5)) << "signed, and not normalised";
  options_["mean"] = "1";
  options_["std"] = "2";
  ASSERT_TRUE(Open().train->Get(0, 0, got.data(), &label).ok());
  EXPECT_THAT(got, ::testing::ElementsAre(0, -1, 2));

  // Five rows of one pixel, three channels, which come last: planes are made of them.
  std::string pixels;
  for (int i = 0; i < 15; ++i) pixels += static_cast<char>(i);
  options_["images"] = folder_.Write("colours", IdxHeader({1, 5, 1, 3}) + pixels);
  options_["mean"] = "0";
  options_["std"] = "0.00392156862745098, 1, 1";
  opened = Open();
  EXPECT_TRUE(opened.train->input().shape == (Shape{3, 5, 1}));
  got.resize(15);
  ASSERT_TRUE(opened.train->Get(0, 0, got.data(), &label).ok());
  for (size_t i = 0; i < 5; ++i) EXPECT_FLOAT_EQ(got[i], static_cast<float>(3 * i));
  EXPECT_FLOAT_EQ(got[5], 1 / 255.0f);
  options_["measure"] = "true";
  ASSERT_TRUE(Open().train->Get(0, 0, got.data(), &label).ok());
  EXPECT_NEAR(got[2], 0, 1e-6);
  EXPECT_NEAR(got[4], 6 / std::sqrt(18.0), 1e-5);
}

}  // namespace
}  // namespace engine
