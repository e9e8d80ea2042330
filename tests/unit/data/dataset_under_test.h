// A dataset plugin of this build, through the plugin boundary.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "engine/dataset.h"
#include "tests/conformance/plugin_under_test.h"

namespace engine::testing {

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

inline OpenedDataset OpenOrFail(const std::string& plugin, const DatasetOptions& options,
                                uint64_t seed = 1) {
  auto opened = OpenDataset(plugin, options, seed);
  EXPECT_TRUE(opened.ok()) << opened.status().message();
  return opened.ok() ? std::move(*opened) : OpenedDataset{};
}

}  // namespace engine::testing
