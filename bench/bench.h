// The library behind `engine bench`: the one header of it that bench/cli includes.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "bench/cluster/cluster.h"
#include "bench/collectives/format.h"
#include "bench/collectives/sweep.h"
#include "bench/machine/machine.h"
#include "bench/report/train_report.h"
#include "bench/training/compare.h"

namespace engine::bench {

// A folder that is removed with all that is in it.
class ScratchFolder {
 public:
  // Below `parent`. kStorage.
  static Result<std::unique_ptr<ScratchFolder>> Create(const std::string& parent);
  ~ScratchFolder();
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;
  const std::string& path() const { return path_; }

 private:
  explicit ScratchFolder(std::string path) : path_(std::move(path)) {}
  const std::string path_;
};

// Writes the profile of that name (docs/benchmarking.md) as a configuration into `folder` and makes
// `request` use it. kInvalidArgument lists the names.
Status UseProfile(const std::string& name, const std::string& folder, TrainRequest* request);

// Writes report.html, results.json and, if there is a fragment, best.pbtxt into `folder`. kStorage.
Status WriteClusterFiles(const ClusterResult& result, const SweepConditions& conditions,
                         const std::string& folder);

// Writes report.html, results.csv and results.json into `folder`. kStorage.
Status WriteTrainFiles(const TrainResult& result, const std::string& folder);

}  // namespace engine::bench
