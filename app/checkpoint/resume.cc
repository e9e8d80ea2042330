#include "app/checkpoint/resume.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <system_error>

#include "app/checkpoint/retention.h"

namespace engine::checkpoint {

Result<train::RunStart> PlanResume(const CheckpointInfo& stored, const CheckpointInfo& run,
                                   int64_t samples) {
  ENGINE_CHECK(samples >= 1 && run.global_batch >= 1, "%lld samples, batch %lld",
               static_cast<long long>(samples), static_cast<long long>(run.global_batch));
  if (stored.global_batch < 1) {
    return Status::Error(StatusCode::kBadData,
                         "the checkpoint of step %lld does not say how far its run came in the "
                         "data, so it can be evaluated but not continued",
                         static_cast<long long>(stored.step));
  }
  // Far enough for any run, and no sum with it overflows.
  const int64_t far = std::numeric_limits<int64_t>::max() / 4;
  const SamplePosition& at = stored.position;
  const bool beyond = at.samples >= samples && stored.data == run.data;
  if (stored.step > far || at.epoch > far / train::CeilDiv(samples, run.global_batch) || beyond) {
    return Status::Error(StatusCode::kBadData,
                         "the checkpoint says that its run came to step %lld and to sample %lld of "
                         "epoch %lld, which cannot be with %lld samples",
                         static_cast<long long>(stored.step), static_cast<long long>(at.samples),
                         static_cast<long long>(at.epoch), static_cast<long long>(samples));
  }
  if (stored.optimizer != run.optimizer) {
    return Status::Error(StatusCode::kConfig,
                         "the checkpoint has the states of optimizer '%s', and this run uses '%s': "
                         "choose '%s' to continue it",
                         stored.optimizer.c_str(), run.optimizer.c_str(), stored.optimizer.c_str());
  }
  return train::RunStart{.step = stored.step,
                         .first_batch = BatchAt(stored.position, samples, run.global_batch)};
}

std::string NewestCheckpoint(const std::string& path, std::vector<Status>* damaged,
                             std::filesystem::file_time_type earlier) {
  for (const std::string& file : FindCheckpoints(path)) {
    std::error_code gone;
    const auto written = std::filesystem::last_write_time(file, gone);
    if (!gone && written <= earlier) break;
    const auto opened = OpenCheckpoint(file);
    if (opened.ok()) return file;
    damaged->push_back(opened.status());
  }
  return "";
}

Status CheckMayReplace(const char* key, const std::string& path, int64_t keep,
                       const std::string& resume) {
  if (path.empty()) return {};
  std::vector<std::string> files = FindCheckpoints(path);
  if (keep <= 1) std::erase_if(files, [&](const std::string& file) { return file != path; });
  const auto is_own = [&](const std::string& file) {
    std::error_code ignored;
    return !resume.empty() && std::filesystem::equivalent(file, resume, ignored);
  };
  if (files.empty() || std::ranges::any_of(FindCheckpoints(path), is_own)) return {};
  const auto opened = OpenCheckpoint(files[0]);
  const std::string what =
      opened.ok() ? fmt::format("the checkpoint of step {} of another run", opened->info.step)
                  : "a file that this run has not written";
  return Status::Error(StatusCode::kConfig,
                       "%s: %s is %s: go on from it (--resume auto), name another file, or "
                       "replace it (--force)",
                       key, files[0].c_str(), what.c_str());
}

std::vector<std::string> ResumeWarnings(const CheckpointInfo& stored, const CheckpointInfo& run) {
  std::vector<std::string> warnings;
  const auto differs = [&](const char* what, auto was, auto is, const char* effect) {
    if (was == is) return;
    warnings.push_back(fmt::format("the checkpoint was written with {} {}, and this run has {}: {}",
                                   what, was, is, effect));
  };
  differs("a global batch of", stored.global_batch, run.global_batch,
          "it goes on at the same step and at the same place in the data, but is another run from "
          "here on");
  differs("seed", stored.seed, run.seed, "the order of the samples is another one");
  if (stored.data != run.data) {
    warnings.push_back(
        "the training data is not that of the checkpoint: samples of this epoch may come again or "
        "be left out");
  }
  return warnings;
}

}  // namespace engine::checkpoint
