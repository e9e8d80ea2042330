// What every dataset must hold to.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <numeric>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "engine/dataset.h"
#include "engine/ext/class_names.h"
#include "kit/dataset.h"
#include "tools/conform/contract.h"
#include "tools/conform/subject.h"

namespace engine::conform {
namespace {

constexpr char kHeader[] = "engine/dataset.h";

constexpr int64_t kMostSamples = 100;
constexpr size_t kMargin = 64;
constexpr uint8_t kMarginFill = 0xa5;

using Bytes = std::vector<std::vector<uint8_t>>;  // of each tensor

class Datasets : public testing::Test {
 protected:
  static std::unique_ptr<Dataset> MakeOpen(uint64_t seed = UnderTest().seed) {
    auto dataset = Make<Dataset>();
    Must(dataset->Open(seed));
    return dataset;
  }

  static std::vector<SampleTensor> TensorsOf(const Dataset& dataset) {
    const DatasetInfo info = dataset.info();
    std::vector<SampleTensor> tensors(info.inputs.begin(), info.inputs.end());
    tensors.insert(tensors.end(), info.targets.begin(), info.targets.end());
    return tensors;
  }

  // Also that nothing is written beside the samples.
  static Bytes Fill(const Dataset& dataset, Split split, uint64_t epoch,
                    const std::vector<int64_t>& indices) {
    Bytes bytes;
    std::vector<void*> memory;
    for (const SampleTensor& tensor : TensorsOf(dataset)) {
      const size_t size =
          static_cast<size_t>(tensor.shape.Count()) * SizeOf(tensor.dtype) * indices.size();
      bytes.emplace_back(size + kMargin, kMarginFill);
      memory.push_back(bytes.back().data());
    }
    Must(dataset.Fill({.split = split, .epoch = epoch, .indices = indices, .tensors = memory}));
    for (std::vector<uint8_t>& tensor : bytes) {
      EXPECT_EQ(std::count(tensor.end() - kMargin, tensor.end(), kMarginFill),
                std::ptrdiff_t{kMargin});
      tensor.resize(tensor.size() - kMargin);
    }
    return bytes;
  }

  // All samples of a split, or the first and the last ones.
  static std::vector<int64_t> Some(const Dataset& dataset, Split split) {
    const DatasetInfo info = dataset.info();
    const int64_t count = split == Split::kTrain ? info.train_samples : info.held_out_samples;
    std::vector<int64_t> indices(static_cast<size_t>(std::min(kMostSamples, count)));
    std::iota(indices.begin(), indices.end(), 0);
    for (size_t i = indices.size() / 2; i < indices.size(); ++i) {
      indices[i] += count - static_cast<int64_t>(indices.size());
    }
    return indices;
  }
};

TEST_F(Datasets, SaysWhatASampleIs) {
  MUST(
      "There are an input and a sample to train on; tensors have names and extents, classes are "
      "of int32; what is known before Open stays true; a digest is visible characters.");
  const auto unopened = Make<Dataset>();
  const auto before = TensorsOf(*unopened);
  const auto dataset = MakeOpen();
  const DatasetInfo info = dataset->info();
  EXPECT_FALSE(info.name.empty());
  EXPECT_TRUE(std::ranges::all_of(std::string_view(info.digest),
                                  [](char c) { return c > ' ' && c <= '~'; }));
  EXPECT_GT(info.train_samples, 0);
  EXPECT_GE(info.held_out_samples, 0);
  ASSERT_GT(info.inputs.size(), 0u);
  const auto tensors = TensorsOf(*dataset);
  for (const SampleTensor& tensor : tensors) {
    EXPECT_FALSE(tensor.name.empty());
    EXPECT_GT(tensor.shape.Count(), 0);
    EXPECT_TRUE(tensor.classes == 0 || tensor.dtype == DType::kInt32);
  }
  if (before.empty()) return;  // only the content tells
  ASSERT_EQ(before.size(), tensors.size());
  for (size_t t = 0; t < tensors.size(); ++t) {
    EXPECT_TRUE(before[t].shape == tensors[t].shape);
    EXPECT_EQ(before[t].dtype, tensors[t].dtype);
  }
}

TEST_F(Datasets, ASampleDependsOnItsIndexAndNotOnWhatElseIsAskedFor) {
  MUST(
      "What is written for an index depends on the options, the content, the seed, the split and "
      "the epoch, and on nothing else.");
  const auto one = MakeOpen(), other = MakeOpen();
  EXPECT_EQ(one->info().digest, other->info().digest);
  for (const Split split : {Split::kTrain, Split::kHeldOut}) {
    for (const uint64_t epoch : {0, 7}) {
      const auto indices = Some(*one, split);
      const Bytes together = Fill(*one, split, epoch, indices);
      for (size_t i = indices.size(); i-- > 0;) {
        const Bytes alone = Fill(*other, split, epoch, {indices[i]});
        for (size_t t = 0; t < alone.size(); ++t) {
          const uint8_t* const there = together[t].data() + i * alone[t].size();
          if (std::memcmp(alone[t].data(), there, alone[t].size()) == 0) continue;
          FAIL() << "sample " << indices[i] << ", tensor " << t << ", is another one alone";
        }
      }
    }
  }
}

TEST_F(Datasets, ClassesAreInTheirRange) {
  MUST("classes > 0: int32 numbers in [0, classes).");
  const auto dataset = MakeOpen();
  const auto tensors = TensorsOf(*dataset);
  for (const Split split : {Split::kTrain, Split::kHeldOut}) {
    const Bytes bytes = Fill(*dataset, split, 1, Some(*dataset, split));
    for (size_t t = 0; t < tensors.size(); ++t) {
      if (tensors[t].classes == 0) continue;
      std::vector<int32_t> values(bytes[t].size() / 4);
      std::memcpy(values.data(), bytes[t].data(), bytes[t].size());
      for (const int32_t value : values) {
        ASSERT_TRUE(value >= 0 && value < tensors[t].classes) << value;
      }
    }
  }
}

TEST_F(Datasets, AllClassesHaveNamesOrNone) {
  CONTRACT(MUST, "engine/ext/class_names.h",
           "All classes of a target have names, or none has (empty); names are UTF-8 without "
           "control characters, the same on every rank.");
  const auto one = MakeOpen(), other = MakeOpen();
  const auto *const names = Query<ClassNames>(*one), *const same = Query<ClassNames>(*other);
  ASSERT_EQ(names == nullptr, same == nullptr);
  const auto targets = one->info().targets;
  for (uint32_t t = 0; names != nullptr && t < targets.size(); ++t) {
    for (int64_t number = 0; number < targets[t].classes; ++number) {
      const std::string name(names->ClassName(t, number));
      EXPECT_EQ(name.empty(), names->ClassName(t, 0).empty()) << "class " << number;
      EXPECT_EQ(name, std::string(same->ClassName(t, number)));
      EXPECT_TRUE(std::ranges::none_of(name, [](unsigned char c) { return c < ' '; })) << name;
      EXPECT_TRUE(kit::IsUtf8(name)) << name;
    }
  }
}

TEST_F(Datasets, NothingIsWrittenForNoSample) {
  MUST("Fill writes the samples of `indices`, dense, and nothing else; there may be none.");
  const auto dataset = MakeOpen();
  for (const std::vector<uint8_t>& tensor : Fill(*dataset, Split::kTrain, 0, {})) {
    EXPECT_TRUE(tensor.empty());
  }
}

TEST_F(Datasets, ThreadsMayAskAtTheSameTime) {
  MUST("Any rank may ask for any sample at any time.");
  const auto dataset = MakeOpen();
  const auto indices = Some(*dataset, Split::kTrain);
  const Bytes expected = Fill(*dataset, Split::kTrain, 2, indices);
  std::vector<Bytes> seen(4);
  {
    std::vector<std::jthread> threads;
    for (Bytes& bytes : seen) {
      threads.emplace_back([&] {
        for (int again = 0; again < 20; ++again) bytes = Fill(*dataset, Split::kTrain, 2, indices);
      });
    }
  }
  for (const Bytes& bytes : seen) EXPECT_EQ(bytes, expected);
}

}  // namespace
}  // namespace engine::conform
