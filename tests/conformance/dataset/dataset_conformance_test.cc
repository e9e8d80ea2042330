// What every dataset has to do, checked through the plugin boundary.
//
// Plugins of others: ENGINE_CONFORMANCE_PLUGINS, with ENGINE_CONFORMANCE_OPTIONS "path=x,context=4".
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "engine/dataset.h"
#include "tests/conformance/plugin_under_test.h"
#include "tests/unit/data/cifar10_bytes.h"
#include "tests/unit/data/idx_bytes.h"
#include "tests/unit/data/token_bytes.h"

namespace engine::test {
namespace {

constexpr int64_t kMostSamples = 100;
constexpr size_t kMargin = 64;
constexpr uint8_t kMarginFill = 0xa5;

using Bytes = std::vector<std::vector<uint8_t>>;  // of each tensor

class DatasetConformance : public ::testing::TestWithParam<std::string> {
 protected:
  std::unique_ptr<Dataset> Make() {
    ExpectDescribed(GetParam(), PluginKind::kDataset);
    const std::string name = Must(PluginUnderTest::Load(GetParam())).name();
    return CreateFrom<Dataset>(GetParam(), OptionsFor(name));
  }

  std::unique_ptr<Dataset> MakeOpen(uint64_t seed = 3) {
    auto dataset = Make();
    Must(dataset->Open(seed));
    return dataset;
  }

  static int64_t SamplesOf(const Dataset& dataset, Split split) {
    const DatasetInfo info = dataset.info();
    return std::min(kMostSamples,
                    split == Split::kTrain ? info.train_samples : info.held_out_samples);
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

  static std::vector<int64_t> All(const Dataset& dataset, Split split) {
    std::vector<int64_t> indices(static_cast<size_t>(SamplesOf(dataset, split)));
    std::iota(indices.begin(), indices.end(), 0);
    return indices;
  }

 private:
  // Files with made-up content for the datasets of this repository.
  OptionValues::Overrides OptionsFor(const std::string& name) {
    OptionValues::Overrides options;
    if (const char* list = std::getenv("ENGINE_CONFORMANCE_OPTIONS")) {
      std::istringstream stream(list);
      for (std::string item; std::getline(stream, item, ',');) {
        options[item.substr(0, item.find('='))] = item.substr(item.find('=') + 1);
      }
    }
    if (!options.empty()) return options;
    if (name == "text") return {{"path", folder_.Write("text", std::string(999, 'x') + "yz")}};
    if (name == "tokens") {
      const std::string bytes = engine::testing::TokenBytes(engine::testing::Counting(7, 900));
      return {{"path", folder_.Write("t.bin", bytes)}, {"context", "5"}};
    }
    if (name == "mnist") {
      return {{"images", folder_.Write("images", engine::testing::IdxImages(25))},
              {"labels", folder_.Write("labels", engine::testing::IdxLabels(25))}};
    }
    if (name != "cifar10") return {};
    engine::testing::WriteCifar(folder_);
    return {{"path", folder_.path().native()}};
  }

  engine::testing::TempFolder folder_;
};

TEST_P(DatasetConformance, SaysWhatASampleIs) {
  const auto unopened = Make();
  const auto before = TensorsOf(*unopened);
  const auto dataset = MakeOpen();
  const DatasetInfo info = dataset->info();
  EXPECT_FALSE(info.name.empty());
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

TEST_P(DatasetConformance, ASampleDependsOnItsIndexAndNotOnWhatElseIsAskedFor) {
  const auto one = MakeOpen(), other = MakeOpen();
  EXPECT_EQ(one->info().digest, other->info().digest);
  for (const Split split : {Split::kTrain, Split::kHeldOut}) {
    for (const uint64_t epoch : {0, 7}) {
      const auto indices = All(*one, split);
      const Bytes together = Fill(*one, split, epoch, indices);
      for (size_t i = indices.size(); i-- > 0;) {
        const Bytes alone = Fill(*other, split, epoch, {indices[i]});
        for (size_t t = 0; t < alone.size(); ++t) {
          EXPECT_EQ(std::memcmp(alone[t].data(), together[t].data() + i * alone[t].size(),
                                alone[t].size()),
                    0)
              << "sample " << i << ", tensor " << t;
        }
      }
    }
  }
}

TEST_P(DatasetConformance, ClassesAreInTheirRange) {
  const auto dataset = MakeOpen();
  const auto tensors = TensorsOf(*dataset);
  for (const Split split : {Split::kTrain, Split::kHeldOut}) {
    const Bytes bytes = Fill(*dataset, split, 1, All(*dataset, split));
    for (size_t t = 0; t < tensors.size(); ++t) {
      if (tensors[t].classes == 0) continue;
      std::vector<int32_t> values(bytes[t].size() / 4);
      std::memcpy(values.data(), bytes[t].data(), bytes[t].size());
      for (const int32_t value : values) {
        EXPECT_TRUE(value >= 0 && value < tensors[t].classes) << value;
      }
    }
  }
}

TEST_P(DatasetConformance, NothingIsWrittenForNoSample) {
  const auto dataset = MakeOpen();
  for (const std::vector<uint8_t>& tensor : Fill(*dataset, Split::kTrain, 0, {})) {
    EXPECT_TRUE(tensor.empty());
  }
}

TEST_P(DatasetConformance, ThreadsMayAskAtTheSameTime) {
  const auto dataset = MakeOpen();
  const auto indices = All(*dataset, Split::kTrain);
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

INSTANTIATE_TEST_SUITE_P(Plugins, DatasetConformance,
                         ::testing::ValuesIn(PluginPaths({"cifar10", "mnist", "synthetic", "text",
                                                          "tokens"})),
                         kNameOfLibrary);

}  // namespace
}  // namespace engine::test
