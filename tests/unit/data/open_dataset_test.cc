#include "core/data/open_dataset.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "tests/unit/data/idx_bytes.h"
#include "tests/unit/storage/temp_folder.h"

namespace engine {
namespace {

using ::testing::HasSubstr;
using testing::TempFolder;

TEST(OpenDataset, ByTheKindThatIsGiven) {
  TempFolder folder;
  config::Data data;
  data.mutable_synthetic();
  auto pair = OpenDataset(data, 1);
  ASSERT_TRUE(pair.ok()) << pair.status().message();
  EXPECT_EQ(pair->train->info().size, 1024);
  EXPECT_EQ(pair->eval->info().size, 256);
  EXPECT_TRUE(pair->train->info().input_shape == Shape{32});
  data.mutable_synthetic()->add_shape(3);
  data.mutable_synthetic()->add_shape(4);
  EXPECT_TRUE(OpenDataset(data, 1)->train->info().input_shape == (Shape{3, 4}));

  data.mutable_text()->set_path(folder.Write("text", std::string(2000, 'x')));
  pair = OpenDataset(data, 1);
  ASSERT_TRUE(pair.ok()) << pair.status().message();
  EXPECT_TRUE(pair->train->info().input_shape == Shape{64});
  EXPECT_EQ(pair->eval->info().size, 3);

  data.mutable_mnist()->set_images(folder.Write("images", testing::IdxImages(20)));
  data.mutable_mnist()->set_labels(folder.Write("labels", testing::IdxLabels(20)));
  pair = OpenDataset(data, 1);
  ASSERT_TRUE(pair.ok()) << pair.status().message();
  EXPECT_EQ(pair->train->info().size, 18);
  EXPECT_EQ(pair->eval->info().size, 2);
}

TEST(OpenDataset, APointIsTheCurrentFolder) {
  TempFolder folder;
  folder.Write("inner/text", std::string(2000, 'x'));
  const auto before = std::filesystem::current_path();
  std::filesystem::current_path(folder.path());
  config::Data data;
  data.mutable_text()->set_path(".");
  const auto pair = OpenDataset(data, 1);
  std::filesystem::current_path(before);
  ASSERT_TRUE(pair.ok()) << pair.status().message();
  EXPECT_EQ((*pair).train->info().size, (1800 - 64) / 64);
}

TEST(OpenDataset, TheDigestTellsWhetherRanksReadTheSame) {
  TempFolder folder;
  config::Data data;
  const auto digest = [&](const std::string& text) {
    data.mutable_text()->set_path(folder.Write("text", text));
    auto pair = OpenDataset(data, 1);
    return pair.ok() ? pair->train->info().digest : std::string();
  };
  const std::string text(2000, 'x');
  EXPECT_THAT(digest(text), ::testing::StartsWith("xxh3_128:"));
  EXPECT_EQ(digest(text), digest(text));
  EXPECT_NE(digest(text), digest(text + "y"));
}

TEST(OpenDataset, NoKindAndTooManyExtentsAreErrorsOfTheConfiguration) {
  config::Data data;
  EXPECT_EQ(OpenDataset(data, 1).status().code(), StatusCode::kConfig);
  EXPECT_THAT(OpenDataset(data, 1).status().message(), HasSubstr("synthetic, cifar10 and tokens"));
  for (int i = 0; i < 6; ++i) data.mutable_synthetic()->add_shape(1);
  EXPECT_EQ(OpenDataset(data, 1).status().code(), StatusCode::kConfig);
  EXPECT_THAT(OpenDataset(data, 1).status().message(), HasSubstr("data.synthetic.shape has 6"));
}

}  // namespace
}  // namespace engine
