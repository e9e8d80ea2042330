#include "app/data/augment.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <set>
#include <tuple>
#include <vector>

#include "tests/support/expect_status.h"

namespace engine {
namespace {

constexpr int64_t kChannels = 2, kRows = 5, kColumns = 7;
constexpr int64_t kImages = 40;

// Every pixel of every image is another number, none of them zero; the same to train on and held out.
class Distinct final : public DatasetBase {
 public:
  explicit Distinct(Shape shape = {kChannels, kRows, kColumns},
                    TensorContent content = TensorContent::kImage)
      : image_{.name = "image", .shape = shape, .content = content} {}
  DatasetInfo info() const noexcept override {
    return {.name = "distinct",
            .inputs = {&image_, 1},
            .targets = {&number_, 1},
            .train_samples = kImages,
            .held_out_samples = kImages,
            .digest = "x"};
  }
  Status Open(uint64_t) noexcept override { return {}; }
  Status Fill(const FillCall& call) const noexcept override {
    const int64_t count = image_.shape.Count();
    auto* pixel = static_cast<float*>(call.tensors[0]);
    auto* target = static_cast<int32_t*>(call.tensors[1]);
    for (const int64_t index : call.indices) {
      for (int64_t i = 0; i < count; ++i) *pixel++ = static_cast<float>(1 + index * count + i);
      *target++ = static_cast<int32_t>(index);
    }
    return {};
  }

 private:
  const SampleTensor image_;
  const SampleTensor number_{
      .name = "number", .shape = {}, .dtype = DType::kInt32, .classes = kImages};
};

using Image = std::vector<float>;
using Change = std::tuple<int64_t, int64_t, bool>;  // down, right, mirrored

Image Get(const Dataset& dataset, uint64_t epoch, int64_t index, Split split = Split::kTrain) {
  Image image(static_cast<size_t>(dataset.info().inputs[0].shape.Count()));
  int32_t target = -1;
  void* const tensors[] = {image.data(), &target};
  EXPECT_TRUE(
      dataset.Fill({.split = split, .epoch = epoch, .indices = {&index, 1}, .tensors = tensors})
          .ok());
  EXPECT_EQ(target, index);
  return image;
}

std::unique_ptr<Dataset> Augmented(const data::AugmentOptions& options) {
  return ValueOf(data::AugmentImages(std::make_unique<Distinct>(), options));
}

// The definition: pixel (r, c) is that at (r + down, c + right), zero outside, then mirrored.
Image Changed(const Image& image, const Change& change) {
  const auto [down, right, mirrored] = change;
  Image result;
  for (int64_t channel = 0; channel < kChannels; ++channel) {
    for (int64_t row = down; row < kRows + down; ++row) {
      for (int64_t i = 0; i < kColumns; ++i) {
        const int64_t column = (mirrored ? kColumns - 1 - i : i) + right;
        const bool inside = row >= 0 && row < kRows && column >= 0 && column < kColumns;
        result.push_back(
            inside ? image[static_cast<size_t>((channel * kRows + row) * kColumns + column)] : 0);
      }
    }
  }
  return result;
}

// How `image` was made from `original`; the test fails when it was not.
Change FindChange(const Image& original, const Image& image, int64_t padding) {
  std::vector<Change> found;
  for (int64_t down = -padding; down <= padding; ++down) {
    for (int64_t right = -padding; right <= padding; ++right) {
      for (const bool mirrored : {false, true}) {
        if (Changed(original, {down, right, mirrored}) == image) {
          found.push_back({down, right, mirrored});
        }
      }
    }
  }
  EXPECT_EQ(found.size(), 1u) << "changes that explain the image";
  return found.empty() ? Change() : found[0];
}

// How often each change occurs in `epochs` epochs.
std::map<Change, int> Count(const data::AugmentOptions& options, uint64_t epochs) {
  const auto augmented = Augmented(options);
  const Distinct plain;
  std::map<Change, int> counts;
  for (uint64_t epoch = 0; epoch < epochs; ++epoch) {
    for (int64_t i = 0; i < kImages; ++i) {
      ++counts[FindChange(Get(plain, 0, i), Get(*augmented, epoch, i), options.crop_padding)];
    }
  }
  return counts;
}

// A count of something that has probability p in n draws may differ from n p by so many: six
// standard deviations. The draws are the same in every run of the test.
double Deviations(double n, double p) {
  return 6 * std::sqrt(n * p * (1 - p));
}

TEST(Augment, AllOffsetsAndBothSidesAreAlikeLikely) {
  const int draws = 50 * static_cast<int>(kImages);
  const auto counts = Count({.crop_padding = 2, .flip = true}, 50);
  EXPECT_EQ(counts.size(), 5u * 5 * 2);
  int mirrored = 0;
  for (const auto& [change, count] : counts) {
    EXPECT_NEAR(count, draws / 50, Deviations(draws, 1.0 / 50));
    if (std::get<2>(change)) mirrored += count;
  }
  EXPECT_NEAR(mirrored, draws / 2, Deviations(draws, 0.5));
}

TEST(Augment, EachOfTheTwoAlone) {
  for (const auto& [change, count] : Count({.flip = true}, 10)) {
    EXPECT_EQ(std::get<0>(change), 0);
    EXPECT_EQ(std::get<1>(change), 0);
    EXPECT_NEAR(count, 200, Deviations(400, 0.5));
  }
  const auto moved = Count({.crop_padding = 1}, 10);
  EXPECT_EQ(moved.size(), 9u);
  for (const auto& [change, count] : moved) EXPECT_FALSE(std::get<2>(change));
}

TEST(Augment, TheLargestPaddingLeavesAPixel) {
  const auto counts = Count({.crop_padding = kRows - 1}, 20);
  EXPECT_GT(counts.size(), 81u * 9 / 10);
}

TEST(Augment, DependsOnSeedEpochAndIndexOnly) {
  const auto one = Augmented({.crop_padding = 2, .flip = true, .seed = 5});
  const auto same = Augmented({.crop_padding = 2, .flip = true, .seed = 5});
  const auto other = Augmented({.crop_padding = 2, .flip = true, .seed = 6});
  const auto epoch = [](const Dataset& dataset, uint64_t number) {
    std::vector<Image> images;
    for (int64_t i = 0; i < kImages; ++i) images.push_back(Get(dataset, number, i));
    return images;
  };
  const auto first = epoch(*one, 3);
  (void)Get(*same, 8, 1);  // what was asked for before does not matter
  EXPECT_EQ(epoch(*same, 3), first);
  EXPECT_NE(epoch(*one, 4), first);
  EXPECT_NE(epoch(*other, 3), first);
  std::set<Change> changes;
  const Distinct plain;
  for (int64_t i = 0; i < kImages; ++i) {
    changes.insert(FindChange(Get(plain, 0, i), first[static_cast<size_t>(i)], 2));
  }
  EXPECT_GT(changes.size(), 15u) << "the images of an epoch are changed in the same way";
}

TEST(Augment, OnlyWhatIsTrainedOn) {
  const auto augmented = Augmented({.crop_padding = 2, .flip = true});
  const Distinct plain;
  EXPECT_EQ(augmented->info().digest, plain.info().digest);
  for (int64_t i = 0; i < kImages; ++i) {
    EXPECT_EQ(Get(*augmented, 3, i, Split::kHeldOut), Get(plain, 3, i, Split::kHeldOut));
  }
}

TEST(Augment, WhatItCannotChangeIsRefused) {
  const auto made = [](int32_t padding, TensorContent content = TensorContent::kImage) {
    return data::AugmentImages(std::make_unique<Distinct>(Shape{2, 5, 7}, content),
                               {.crop_padding = padding});
  };
  EXPECT_THAT(made(1, TensorContent::kNumbers),
              FailsWith(StatusCode::kConfig, HasSubstr("distinct has none")));
  EXPECT_THAT(made(5),
              FailsWith(StatusCode::kConfig, HasSubstr("crop_padding is 5; for images of 5 x 7")));
  EXPECT_THAT(made(-1), FailsWith(StatusCode::kConfig, HasSubstr("must be 0 to 4")));
}

}  // namespace
}  // namespace engine
