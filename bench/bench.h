// The library behind `engine bench`: the one header of it that core/cli includes.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

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

// Layer times of a known network in place of a configuration (docs/benchmarking.md).
struct ProfileChoice {
  std::string name;
  double time_scale = 1, bytes_scale = 1;
  double jitter = 0;
};

// Writes the profile as a configuration into `folder` and makes `request` use it. kInvalidArgument
// when there is no such profile or a scale is out of range.
Status UseProfile(const ProfileChoice& choice, const std::string& folder, TrainRequest* request);

// Writes report.html, results.csv and results.json into `folder`. kStorage.
Status WriteTrainFiles(const TrainResult& result, const std::string& folder);

// What one rank of `request.ranks` printed and how all of them ended.
struct LinkedOutcome {
  int exit_code = 0;
  std::string output;  // of rank 0, or of the rank that failed
};

// Runs `program.binary` with `arguments` once per rank, each on a host of its own behind a link,
// numbered by torchrun's variables. Nothing is left running. The errors of LinkedHosts and of
// RunTogether; a rank that fails is no error of this call.
Result<LinkedOutcome> RunOnLinkedHosts(const std::vector<std::string>& arguments, int ranks,
                                       const std::string& rate, const std::string& congestion,
                                       const Program& program, int64_t timeout_ms);

}  // namespace engine::bench
