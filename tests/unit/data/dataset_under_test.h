// A dataset plugin of this build, through the plugin boundary.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/dataset.h"
#include "tests/conformance/plugin_under_test.h"
#include "tests/support/expect_status.h"
#include "tests/support/temp_folder.h"

namespace engine::test {

using DatasetOptions = test::OptionValues::Overrides;

// One split of a dataset with one input and one target, sample by sample.
class SplitView {
 public:
  SplitView(std::shared_ptr<Dataset> dataset, Split split)
      : dataset_(std::move(dataset)), split_(split) {}

  int64_t size() const {
    const DatasetInfo info = dataset_->info();
    return split_ == Split::kTrain ? info.train_samples : info.held_out_samples;
  }
  const SampleTensor& input() const { return dataset_->info().inputs[0]; }
  const SampleTensor& target() const { return dataset_->info().targets[0]; }
  std::string name() const { return std::string(dataset_->info().name); }
  std::string digest() const { return std::string(dataset_->info().digest); }

  Status Get(uint64_t epoch, int64_t index, void* input, int32_t* target) const {
    void* const tensors[] = {input, target};
    return dataset_->Fill(
        {.split = split_, .epoch = epoch, .indices = {&index, 1}, .tensors = tensors});
  }

 private:
  std::shared_ptr<Dataset> dataset_;
  Split split_;
};

struct OpenedDataset {
  std::shared_ptr<Dataset> dataset;
  std::unique_ptr<SplitView> train, eval;
};

// With the published defaults of the options that are not given.
inline Result<OpenedDataset> OpenDataset(const std::string& plugin, const DatasetOptions& options,
                                         uint64_t seed = 1) {
  static test::SingleHost host;
  ENGINE_ASSIGN_OR_RETURN(const auto library,
                          test::PluginUnderTest::Load(test::PluginPaths({plugin})[0]));
  ENGINE_ASSIGN_OR_RETURN(auto made, library.Create<Dataset>(host, options));
  OpenedDataset opened{.dataset = std::move(made)};
  ENGINE_RETURN_IF_ERROR(opened.dataset->Open(seed));
  opened.train = std::make_unique<SplitView>(opened.dataset, Split::kTrain);
  opened.eval = std::make_unique<SplitView>(opened.dataset, Split::kHeldOut);
  return opened;
}

// Of one plugin, whose files a test writes.
class DatasetTest : public ::testing::Test {
 protected:
  explicit DatasetTest(const char* plugin) : plugin_(plugin) {}

  OpenedDataset Open(uint64_t seed = 1) { return ValueOf(OpenDataset(plugin_, options_, seed)); }

  void ExpectError(StatusCode code, const ::testing::Matcher<std::string>& reason) {
    EXPECT_THAT(OpenDataset(plugin_, options_), FailsWith(code, reason));
  }

  const std::string plugin_;
  TempFolder folder_;
  DatasetOptions options_;
};

// The context + 1 tokens of a sample, whose targets must be the tokens that follow.
inline std::vector<int32_t> TokensOf(const SplitView& dataset, uint64_t epoch, int64_t index) {
  const size_t context = static_cast<size_t>(dataset.input().shape[0]);
  std::vector<int32_t> tokens(context), target(context);
  EXPECT_TRUE(dataset.Get(epoch, index, tokens.data(), target.data()).ok());
  for (size_t i = 0; i + 1 < context; ++i) EXPECT_EQ(target[i], tokens[i + 1]);
  tokens.push_back(target.back());
  return tokens;
}

}  // namespace engine::test
