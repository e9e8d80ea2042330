// The batches of a run: its dataset plugin, its images augmented, in the order of each epoch.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/base/rank_context.h"
#include "core/plugin/plugin_host.h"
#include "core/train/batch_source.h"
#include "core/train/run_config.h"

namespace engine::data {

class DatasetSource final : public train::BatchSource {
 public:
  // Both are borrowed.
  DatasetSource(const train::RunConfig& config, base::RankContext& rank);
  ~DatasetSource() override;

  // Makes the dataset that the configuration chooses, which reads nothing yet: info() says what a
  // sample is.
  Status Make();
  // Makes and opens it. kPlugin when it breaks its contract, kConfig when its images are to be
  // augmented and it has none.
  Status Open() override;
  DatasetInfo info() const override { return dataset_->info(); }
  // Of the targets whose classes have names (engine/ext/class_names.h), by the target's name: those of
  // all its classes. After Open.
  const std::map<std::string, std::vector<std::string>>& class_names() const {
    return class_names_;
  }
  Result<std::unique_ptr<train::BatchStream>> Batches(const train::BatchRequest& request) override;

 private:
  const train::RunConfig& config_;
  base::CallWatch* const watch_;  // or null, as:
  const base::CallWatch::Call* const fill_;
  plugin::PluginHost host_;
  std::unique_ptr<Dataset> dataset_;  // uses the host
  std::map<std::string, std::vector<std::string>> class_names_;
};

}  // namespace engine::data
