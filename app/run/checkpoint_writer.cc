#include "app/run/checkpoint_writer.h"

#include <fmt/format.h>
#include <pthread.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <utility>

#include "app/checkpoint/atomic_file.h"
#include "app/checkpoint/data_digest.h"
#include "app/checkpoint/rank_states.h"
#include "app/checkpoint/retention.h"
#include "app/launch/deadlines.h"
#include "app/launch/member.h"
#include "app/run/checkpoint_wait.h"

namespace engine::run {

// Where all processors are taken, a third of what a thread of training gets: ranks go in step, so each
// waits for the one that this disturbs.
constexpr int kNice = 5;

Result<bool> SharesFile(base::RankContext& rank, const std::string& path) {
  const RankInfo& info = rank.info;
  if (info.world_size == 1 || path.empty()) return true;
  const std::string key = "checkpoint/shared" + path;
  const auto answer = [&](int32_t of) { return key + "/" + std::to_string(of); };
  if (info.rank != 0) {
    ENGINE_ASSIGN_OR_RETURN(const std::string told,
                            rank.store.Get(answer(0), info.rendezvous_timeout_ms));
    const size_t space = told.find(' ');
    const std::string name = told.substr(space + 1);
    std::string content;
    std::ifstream(name) >> content;
    const bool sees = content == told.substr(0, space) && checkpoint::AtomicFile::Join(name).ok();
    ENGINE_RETURN_IF_ERROR(rank.store.Set(answer(info.rank), sees ? "1" : ""));
    ENGINE_ASSIGN_OR_RETURN(const std::string all, rank.store.Get(key, info.rendezvous_timeout_ms));
    return !all.empty();
  }
  ENGINE_ASSIGN_OR_RETURN(const auto file, checkpoint::AtomicFile::Create(path));
  const std::string content = std::to_string(base::DeadlineIn(0).time_since_epoch().count());
  ENGINE_RETURN_IF_ERROR(file->Write(content.data(), content.size()));
  ENGINE_RETURN_IF_ERROR(rank.store.Set(answer(0), content + " " + file->temporary()));
  std::string all = "1";
  for (int32_t of = 1; of < info.world_size; ++of) {
    ENGINE_ASSIGN_OR_RETURN(const std::string sees,
                            rank.store.Get(answer(of), info.rendezvous_timeout_ms));
    if (sees.empty()) all.clear();
  }
  if (all.empty()) {
    rank.Log(LogLevel::kInfo, "not all ranks see the files of rank 0: it writes checkpoints alone");
  }
  ENGINE_RETURN_IF_ERROR(rank.store.Set(key, all));
  return !all.empty();
}

// All wait until all can go on: one may have to write this file or the one before, which takes longer than
// a transfer may.
Status CheckpointWriter::Save(const std::string& path, int64_t keep, const exec::Executor& executor,
                              const checkpoint::CheckpointInfo& info, train::CheckpointKind kind,
                              bool together) {
  const bool last = kind == train::CheckpointKind::kLast;
  const int32_t rank = rank_.info.rank;
  if (path.empty() && !last) return {};
  checkpoint::RankStates kept;
  if (!path.empty()) {
    ENGINE_ASSIGN_OR_RETURN(kept, checkpoint::CollectRankStates(executor, path));
  }
  ENGINE_RETURN_IF_ERROR(Finish(kind == train::CheckpointKind::kPeriodic && info.step != step_));
  key_ = "checkpoint/" + std::to_string(info.step) + path;
  writers_ = together ? rank_.info.world_size : 1;
  if (!path.empty() && rank < writers_) {
    path_ = path;
    step_ = info.step;
    ENGINE_ASSIGN_OR_RETURN(auto content, checkpoint::ContentOf(executor, info, kept, !last,
                                                                memory_, {rank, writers_}));
    ENGINE_RETURN_IF_ERROR(Begin(keep, std::move(content), last));
  }
  const auto copied = [&](int32_t of) { return key_ + "/copied" + std::to_string(of); };
  if (rank != 0) {
    if (together) ENGINE_RETURN_IF_ERROR(rank_.store.Set(copied(rank), ""));
    return AwaitCheckpoint(rank_.store, key_, launch::kProgressTimeoutMs);
  }
  for (int32_t of = 1; of < writers_; ++of) {
    ENGINE_RETURN_IF_ERROR(AwaitCheckpoint(rank_.store, copied(of), launch::kProgressTimeoutMs));
  }
  return rank_.store.Set(key_, "");
}

Status CheckpointWriter::Begin(int64_t keep, checkpoint::CheckpointContent content, bool waits) {
  deadline_ = base::DeadlineIn(launch::kProgressTimeoutMs);
  if (!waits && !content.copied && !std::exchange(told_of_memory_, true)) {
    rank_.Log(LogLevel::kWarning,
              "no memory for a copy of parameters and optimizer states: training waits while a "
              "checkpoint is written");
  }
  if (waits || !content.copied) {
    ENGINE_RETURN_IF_ERROR(Write(content, keep));
    return rank_.info.rank == 0 ? observer_.OnCheckpoint(step_, path_) : Status();
  }
  write_ = std::async(std::launch::async, [this, keep, content = std::move(content)] {
    pthread_setname_np(pthread_self(), "checkpoint");
    (void)nice(kNice);  // of this thread, on Linux
    return Write(content, keep);
  });
  return {};
}

// The first writer makes the file, and gives it its name when all have written: what others write after a
// failure has no name any more.
Status CheckpointWriter::Write(const checkpoint::CheckpointContent& content, int64_t keep) {
  const auto progress = [this, tell = CheckpointProgress(rank_.store)] {
    deadline_ = base::DeadlineIn(launch::kProgressTimeoutMs);
    tell();
  };
  const auto digest_of = [&](int32_t rank) { return key_ + "/digest" + std::to_string(rank); };
  const int32_t rank = rank_.info.rank;
  if (rank != 0) {
    ENGINE_ASSIGN_OR_RETURN(const std::string told, Await(key_ + "/file"));
    ENGINE_ASSIGN_OR_RETURN(
        const auto file, checkpoint::AtomicFile::Join(told.substr(told.find(' ') + 1), progress));
    ENGINE_ASSIGN_OR_RETURN(const checkpoint::DataDigest own,
                            checkpoint::WriteParts(content, std::stoull(told), *file));
    ENGINE_RETURN_IF_ERROR(file->Commit());
    return rank_.store.Set(digest_of(rank), own.Text());
  }
  ENGINE_ASSIGN_OR_RETURN(const std::string head, checkpoint::HeadOf(content.header, {}));
  ENGINE_ASSIGN_OR_RETURN(const auto file, checkpoint::AtomicFile::Create(path_, progress));
  if (writers_ > 1) {
    ENGINE_RETURN_IF_ERROR(
        rank_.store.Set(key_ + "/file", fmt::format("{} {}", head.size(), file->temporary())));
  }
  ENGINE_ASSIGN_OR_RETURN(checkpoint::DataDigest digest,
                          checkpoint::WriteParts(content, head.size(), *file));
  for (int32_t other = 1; other < writers_; ++other) {
    ENGINE_ASSIGN_OR_RETURN(const std::string text, Await(digest_of(other)));
    ENGINE_CHECK(digest.Add(text), "'%s' is the digest of no part", text.c_str());
  }
  ENGINE_RETURN_IF_ERROR(checkpoint::FinishFile(content, digest, *file));
  return checkpoint::KeepNewest(path_, content.step, keep);
}

// What another rank tells, as long as some rank gets on and this writer is wanted.
Result<std::string> CheckpointWriter::Await(const std::string& key) {
  std::string before;
  for (;;) {
    auto got = rank_.store.Get(key, launch::kPollMs);
    if (got.ok() || got.status().code() != StatusCode::kTimeout || ends_) return got;
    const auto now = rank_.store.Get(launch::kProgressKey, 0);
    if (now.ok() && std::exchange(before, *now) != *now) {
      deadline_ = base::DeadlineIn(launch::kProgressTimeoutMs);
    }
    if (base::Passed(deadline_)) return DiskStandsStill(launch::kProgressTimeoutMs);
  }
}

Status CheckpointWriter::Finish(bool waits_for_disk) {
  if (!write_.valid()) return {};
  if (rank_.info.rank == 0 && waits_for_disk && !ReadyWithin(0) &&
      !std::exchange(told_of_disk_, true)) {
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
  return rank_.info.rank != 0 ? Status() : observer_.OnCheckpoint(step_, path_);
}

Status CheckpointWriter::OnStep(const train::StepReport& report) {
  if (write_.valid() && ReadyWithin(0)) ENGINE_RETURN_IF_ERROR(Announce());
  return observer_.OnStep(report);
}

}  // namespace engine::run
