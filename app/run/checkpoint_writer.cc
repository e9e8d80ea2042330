#include "app/run/checkpoint_writer.h"

#include <pthread.h>
#include <unistd.h>

#include <chrono>
#include <utility>

#include "app/checkpoint/rank_states.h"
#include "app/checkpoint/retention.h"
#include "app/launch/deadlines.h"
#include "app/run/checkpoint_wait.h"

namespace engine::run {

// Where all processors are taken, a third of what a thread of training gets: ranks go in step, so each
// waits for the one that this disturbs.
constexpr int kNice = 5;

// The others wait until rank 0 can go on: it may have to write this file or the one before, which takes
// longer than a transfer may.
Status CheckpointWriter::Save(const std::string& path, int64_t keep, const exec::Executor& executor,
                              const checkpoint::CheckpointInfo& info, train::CheckpointKind kind) {
  const bool last = kind == train::CheckpointKind::kLast;
  if (path.empty() && !last) return {};
  checkpoint::RankStates kept;
  if (!path.empty()) {
    ENGINE_ASSIGN_OR_RETURN(kept, checkpoint::CollectRankStates(executor, path));
  }
  const std::string saved = "checkpoint/" + std::to_string(info.step) + path;
  if (rank_.info.rank != 0) return AwaitCheckpoint(rank_.store, saved, launch::kProgressTimeoutMs);
  ENGINE_RETURN_IF_ERROR(Finish(kind == train::CheckpointKind::kPeriodic && info.step != step_));
  if (!path.empty()) {
    path_ = path;
    step_ = info.step;
    ENGINE_ASSIGN_OR_RETURN(auto content,
                            checkpoint::ContentOf(executor, info, kept, !last, memory_));
    ENGINE_RETURN_IF_ERROR(Write(keep, std::move(content), last));
  }
  return rank_.store.Set(saved, "");
}

Status CheckpointWriter::Write(int64_t keep, checkpoint::CheckpointContent content, bool waits) {
  const auto write = [this, keep](const checkpoint::CheckpointContent& from) -> Status {
    const auto progress = [this, tell = CheckpointProgress(rank_.store)] {
      deadline_ = base::DeadlineIn(launch::kProgressTimeoutMs);
      tell();
    };
    deadline_ = base::DeadlineIn(launch::kProgressTimeoutMs);
    ENGINE_RETURN_IF_ERROR(checkpoint::WriteCheckpoint(path_, from, progress));
    return checkpoint::KeepNewest(path_, from.step, keep);
  };
  if (!waits && !content.copied && !std::exchange(told_of_memory_, true)) {
    rank_.Log(LogLevel::kWarning,
              "no memory for a copy of parameters and optimizer states: training waits while a "
              "checkpoint is written");
  }
  if (waits || !content.copied) {
    ENGINE_RETURN_IF_ERROR(write(content));
    return observer_.OnCheckpoint(step_, path_);
  }
  write_ = std::async(std::launch::async, [this, write, content = std::move(content)] {
    pthread_setname_np(pthread_self(), "checkpoint");
    (void)nice(kNice);  // of this thread, on Linux
    return write(content);
  });
  return {};
}

Status CheckpointWriter::Finish(bool waits_for_disk) {
  if (!write_.valid()) return {};
  if (waits_for_disk && !ReadyWithin(0) && !std::exchange(told_of_disk_, true)) {
    rank_.Log(LogLevel::kWarning, "the checkpoint of step " + std::to_string(step_) +
                                      " is still being written, and training waits for it: raise "
                                      "train.checkpoint_every, or write to a faster disk");
  }
  while (!ReadyWithin(launch::kPollMs)) {
    ENGINE_RETURN_IF_ERROR(rank_.abort.reason());
    if (base::Passed(deadline_)) return DiskStandsStill(launch::kProgressTimeoutMs);
  }
  return Announce();
}

bool CheckpointWriter::ReadyWithin(int64_t ms) const {
  return write_.wait_for(std::chrono::milliseconds(ms)) == std::future_status::ready;
}

Status CheckpointWriter::Announce() {
  ENGINE_RETURN_IF_ERROR(write_.get());
  return observer_.OnCheckpoint(step_, path_);
}

Status CheckpointWriter::OnStep(const train::StepReport& report) {
  if (write_.valid() && ReadyWithin(0)) ENGINE_RETURN_IF_ERROR(Announce());
  return observer_.OnStep(report);
}

}  // namespace engine::run
