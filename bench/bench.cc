#include "bench/bench.h"

#include <stdlib.h>
#include <string.h>

#include <cerrno>
#include <filesystem>
#include <fstream>

#include "bench/profile/profile.h"

namespace engine::bench {
namespace {

Status WriteFile(const std::string& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << text;
  file.close();
  if (file) return {};
  return Status::Error(StatusCode::kStorage, "cannot write %s: %s", path.c_str(), strerror(errno));
}

}  // namespace

Result<std::unique_ptr<ScratchFolder>> ScratchFolder::Create(const std::string& parent) {
  std::string path = parent + "/engine_bench.XXXXXX";
  if (mkdtemp(path.data()) == nullptr) {
    return Status::Error(StatusCode::kStorage, "cannot make a folder in %s: %s", parent.c_str(),
                         strerror(errno));
  }
  return std::unique_ptr<ScratchFolder>(new ScratchFolder(std::move(path)));
}

ScratchFolder::~ScratchFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

Status UseProfile(const std::string& name, const std::string& folder, TrainRequest* request) {
  std::string known;
  for (const auto& [other, text] : Profiles()) {
    if (other == name) {
      request->config_name = "profile " + name;
      request->config_file = folder + "/" + name + ".pbtxt";
      return WriteFile(request->config_file, text);
    }
    known += (known.empty() ? "" : ", ") + other;
  }
  return Status::Error(StatusCode::kInvalidArgument, "there is no profile '%s'; there are: %s",
                       name.c_str(), known.c_str());
}

Status WriteClusterFiles(const ClusterResult& result, const SweepConditions& conditions,
                         const std::string& folder) {
  std::string sweeps;
  const auto add = [&](const ClusterSweep& sweep, int ranks) {
    SweepConditions of_sweep = conditions;
    of_sweep.ranks = ranks;
    sweeps += (sweeps.empty() ? "[" : ",") + SweepJson(sweep.request, of_sweep, sweep.result);
  };
  for (const PairClass& pair : result.pairs) add(pair.sweep, 2);
  for (const ClusterSweep& sweep : result.sweeps) add(sweep, conditions.ranks);
  ENGINE_RETURN_IF_ERROR(WriteFile(folder + "/report.html", ClusterHtml(result, conditions)));
  ENGINE_RETURN_IF_ERROR(WriteFile(folder + "/results.json", sweeps + "]\n"));
  return result.fragment.empty() ? Status() : WriteFile(folder + "/best.pbtxt", result.fragment);
}

Status WriteTrainFiles(const TrainResult& result, const std::string& folder) {
  ENGINE_RETURN_IF_ERROR(WriteFile(folder + "/report.html", TrainHtml(result)));
  ENGINE_RETURN_IF_ERROR(WriteFile(folder + "/results.csv", TrainCsv(result)));
  return WriteFile(folder + "/results.json", TrainJson(result));
}

}  // namespace engine::bench
