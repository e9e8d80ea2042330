#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "engine/ext/class_names.h"
#include "tests/unit/data/cifar10_bytes.h"
#include "tests/unit/data/dataset_under_test.h"

namespace engine {
namespace {

using test::CifarPixel;
using test::CifarRecords;

class Cifar10 : public test::DatasetTest {
 protected:
  Cifar10() : DatasetTest("cifar10") {
    test::WriteCifar(folder_);
    options_["path"] = folder_.path();
  }
};

// Checks that sample `index` is image `image` of the made-up files, by the formula that users know.
void ExpectImage(const test::SplitView& dataset, int64_t index, int image) {
  constexpr double kMean[] = {0.4914, 0.4822, 0.4465}, kDeviation[] = {0.2470, 0.2435, 0.2616};
  std::vector<float> input(3 * 32 * 32);
  int32_t target = -1;
  ASSERT_TRUE(dataset.Get(9, index, input.data(), &target).ok());
  EXPECT_EQ(target, image % 10);
  for (int c = 0; c < 3; ++c) {
    for (int i = 0; i < 1024; ++i) {
      const double pixel = CifarPixel(image, c, i / 32, i % 32) / 255.0;
      ASSERT_NEAR(input[static_cast<size_t>(1024 * c + i)], (pixel - kMean[c]) / kDeviation[c],
                  1e-5)
          << "image " << image << ", channel " << c << ", pixel " << i;
    }
  }
}

TEST_F(Cifar10, TrainsOnFiveFilesAndHoldsOutTheSixth) {
  const test::OpenedDataset pair = Open();
  EXPECT_EQ(pair.train->size(), 20);
  EXPECT_EQ(pair.eval->size(), 4);
  const SampleTensor &input = pair.train->input(), &target = pair.train->target();
  EXPECT_TRUE(input.shape == (Shape{3, 32, 32}));
  EXPECT_EQ(input.dtype, DType::kFloat32);
  EXPECT_EQ(input.content, TensorContent::kImage);
  EXPECT_EQ(target.shape.ndim, 0);
  EXPECT_EQ(target.classes, 10);
  EXPECT_THAT(pair.train->name(), HasSubstr(folder_.path().native()));
  for (int i = 0; i < 20; ++i) ExpectImage(*pair.train, i, i);
  for (int i = 0; i < 4; ++i) ExpectImage(*pair.eval, i, 20 + i);
}

TEST_F(Cifar10, TheDigestIsOfTheTrainingFiles) {
  const auto digest = [&] { return Open().train->digest(); };
  const std::string before = digest();
  EXPECT_EQ(digest(), before);
  folder_.Write("test_batch.bin", CifarRecords(3, 2));
  EXPECT_EQ(digest(), before);
  std::string changed = CifarRecords(14, 6);
  changed.back() ^= 1;
  folder_.Write("data_batch_5.bin", changed);
  EXPECT_NE(digest(), before);
}

TEST_F(Cifar10, BadFilesAreNamedWithTheirRecord) {
  const std::string third = folder_ / "data_batch_3.bin";
  std::string wrong = CifarRecords(5, 4);
  wrong[2 * 3073] = 10;
  folder_.Write("data_batch_3.bin", wrong);
  ExpectError(StatusCode::kBadData,
              HasSubstr(third + ": the label of record 2, at offset 6146, is 10"));
  folder_.Write("data_batch_3.bin", CifarRecords(5, 4) + "x");
  ExpectError(StatusCode::kBadData,
              AllOf(HasSubstr(third + ": 12293 bytes"), HasSubstr("records of 3073")));
  folder_.Write("data_batch_3.bin", "");
  ExpectError(StatusCode::kBadData, HasSubstr(third + ": 0 bytes"));
  std::filesystem::remove(third);
  ExpectError(StatusCode::kMissingInput, AllOf(HasSubstr("data.cifar10"), HasSubstr(third)));
}

TEST_F(Cifar10, TheFirstFilesAreASetOfTheirOwn) {
  for (const char* name : {"data_batch_3.bin", "data_batch_4.bin", "data_batch_5.bin"}) {
    std::filesystem::remove(folder_ / name);
  }
  EXPECT_EQ(Open().train->size(), 2 + 3);
  std::filesystem::remove(folder_ / "data_batch_1.bin");
  ExpectError(StatusCode::kMissingInput, HasSubstr("data_batch_1.bin"));
}

TEST_F(Cifar10, TheHeldOutFileIsCheckedToo) {
  folder_.Write("test_batch.bin", std::string(3073, '\x7f'));
  ExpectError(StatusCode::kBadData,
              HasSubstr(folder_ / "test_batch.bin" + ": the label of record 0"));
}

TEST_F(Cifar10, OneHundredClassesAndTheirNames) {
  const auto record = [](char coarse, char fine) {
    return std::string{coarse, fine} + std::string(3072, '\x80');
  };
  folder_.Write("train.bin", record(3, 77) + record(19, 99));
  folder_.Write("test.bin", record(0, 4));
  std::string names;
  for (int i = 0; i < 20; ++i) names += "kind" + std::to_string(i) + "\n";
  folder_.Write("coarse_label_names.txt", names);
  folder_.Write("fine_label_names.txt", names);
  std::vector<float> input(3 * 32 * 32);
  int32_t target = -1;
  options_["labels"] = "cifar100_fine";
  test::OpenedDataset opened = Open();
  EXPECT_EQ(opened.train->target().classes, 100);
  ASSERT_TRUE(opened.train->Get(0, 1, input.data(), &target).ok());
  EXPECT_EQ(target, 99);
  EXPECT_NEAR(input[0], (128 / 255.0 - 0.5071) / 0.2673, 1e-5);
  EXPECT_TRUE(Query<ClassNames>(*opened.dataset)->ClassName(0, 3).empty()) << "20 names of 100";
  options_["labels"] = "cifar100_coarse";
  opened = Open();
  EXPECT_EQ(opened.train->target().classes, 20);
  ASSERT_TRUE(opened.train->Get(0, 0, input.data(), &target).ok());
  EXPECT_EQ(target, 3);
  EXPECT_EQ(std::string(Query<ClassNames>(*opened.dataset)->ClassName(0, 19)), "kind19");
  folder_.Write("train.bin", record(20, 7));
  ExpectError(StatusCode::kBadData, HasSubstr("the label of record 0, at offset 0, is 20"));
}

}  // namespace
}  // namespace engine
