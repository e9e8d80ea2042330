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
    ENGINE_ASSIGN_OR_RETURN(const std::string name,
                            rank.store.Get(answer(0), info.rendezvous_timeout_ms));
    const auto file = checkpoint::AtomicFile::Join(path, name);
    const auto place = static_cast<uint64_t>(info.rank - 1);
    if (file.ok() && (*file)->WriteAt(place, "1", 1).ok()) (void)(*file)->Commit();
    ENGINE_RETURN_IF_ERROR(rank.store.Set(answer(info.rank), ""));
    ENGINE_ASSIGN_OR_RETURN(const std::string all, rank.store.Get(key, info.rendezvous_timeout_ms));
    return !all.empty();
  }
  ENGINE_ASSIGN_OR_RETURN(const auto file, checkpoint::AtomicFile::Create(path));
  ENGINE_RETURN_IF_ERROR(rank.store.Set(answer(0), file->temporary()));
  for (int32_t of = 1; of < info.world_size; ++of) {
    ENGINE_RETURN_IF_ERROR(rank.store.Get(answer(of), info.rendezvous_timeout_ms).status());
  }
  std::string all;
  std::ifstream(file->temporary()) >> all;
  if (all != std::string(static_cast<size_t>(info.world_size - 1), '1')) all.clear();
  if (all.empty()) {
    rank.Log(LogLevel::kInfo, "not all ranks see the files of rank 0: it writes checkpoints alone");
  }
  ENGINE_RETURN_IF_ERROR(rank.store.Set(key, all));
  return !all.empty();
}

// All wait until all can go on: one may have to write this file or the one before, which takes longer than
// a transfer may. Where all write parts, and have copied theirs, that is when the file before is there,
// which each knows without asking.
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
  key_ = "checkpoint/" + std::to_string(info.step) + path + "/";
  writers_ = together ? rank_.info.world_size : 1;
  bool copied = !last;
  if (!path.empty() && rank < writers_) {
    path_ = path;
    step_ = info.step;
    if (executor.plugins().communicator->traits().no_op == 0) keys_.push_back(key_);
    ENGINE_ASSIGN_OR_RETURN(auto content, checkpoint::ContentOf(executor, info, kept, !last,
                                                                memory_, {rank, writers_}));
    copied = copied && content.copied;
    ENGINE_RETURN_IF_ERROR(Begin(keep, std::move(content), last));
  }
  if (together && all_copy_ && !last) return {};
  const auto copied_by = [&](int32_t of) { return key_ + "copied" + std::to_string(of); };
  const auto await = [&](const std::string& key) {
    return AwaitCheckpoint(rank_.store, key, launch::kProgressTimeoutMs);
  };
  std::string all = copied ? "all" : "";
  if (rank != 0) {
    if (together) ENGINE_RETURN_IF_ERROR(rank_.store.Set(copied_by(rank), all));
    ENGINE_ASSIGN_OR_RETURN(all, await(key_ + "go"));
  } else {
    for (int32_t of = 1; of < writers_; ++of) {
      ENGINE_ASSIGN_OR_RETURN(const std::string other, await(copied_by(of)));
      if (other.empty()) all.clear();
    }
    ENGINE_RETURN_IF_ERROR(rank_.store.Set(key_ + "go", all));
  }
  all_copy_ = together && !all.empty();
  return {};
}

Status CheckpointWriter::Begin(int64_t keep, checkpoint::CheckpointContent content, bool waits) {
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
// failure has no name any more. A rank that has written has read all about the file before. Where rank 0
// writes alone, steps were made since the last but two, in which ranks wait for each other.
Status CheckpointWriter::Write(const checkpoint::CheckpointContent& content, int64_t keep) {
  const auto progress = CheckpointProgress(rank_.store);
  const auto told = [&](const std::string& key) {
    return AwaitCheckpoint(rank_.store, key, launch::kProgressTimeoutMs, &ends_);
  };
  const auto digest_of = [&](int32_t rank) { return key_ + "digest" + std::to_string(rank); };
  const int32_t rank = rank_.info.rank;
  if (rank != 0) {
    ENGINE_ASSIGN_OR_RETURN(const std::string to, told(key_ + "file"));
    const auto file = checkpoint::AtomicFile::Join(path_, to.substr(to.find(' ') + 1), progress);
    if (!file.ok()) {  // rank 0 has removed it, and the run ends of what made it do so
      const Status end =
          AwaitCheckpoint(rank_.store, key_ + "done", launch::kSecondaryFailureMs, &ends_).status();
      return end.code() == StatusCode::kTimeout ? file.status() : end;
    }
    ENGINE_ASSIGN_OR_RETURN(const checkpoint::DataDigest own,
                            checkpoint::WriteParts(content, std::stoull(to), **file));
    ENGINE_RETURN_IF_ERROR((*file)->Commit());
    ENGINE_RETURN_IF_ERROR(rank_.store.Set(digest_of(rank), own.Text()));
    return told(key_ + "done").status();
  }
  ENGINE_ASSIGN_OR_RETURN(const std::string head, checkpoint::HeadOf(content.header, {}));
  ENGINE_ASSIGN_OR_RETURN(const auto file, checkpoint::AtomicFile::Create(path_, progress));
  if (writers_ > 1) {
    ENGINE_RETURN_IF_ERROR(
        rank_.store.Set(key_ + "file", fmt::format("{} {}", head.size(), file->temporary())));
  }
  ENGINE_ASSIGN_OR_RETURN(checkpoint::DataDigest digest,
                          checkpoint::WriteParts(content, head.size(), *file));
  for (int32_t other = 1; other < writers_; ++other) {
    ENGINE_ASSIGN_OR_RETURN(const std::string text, told(digest_of(other)));
    ENGINE_CHECK(digest.Add(text), "'%s' is the digest of no part", text.c_str());
  }
  if (keys_.size() > 2) {
    ENGINE_RETURN_IF_ERROR(rank_.store.Set(launch::kRemoveKey, keys_.front()));
    keys_.pop_front();
  }
  ENGINE_RETURN_IF_ERROR(checkpoint::FinishFile(content, digest, *file));
  ENGINE_RETURN_IF_ERROR(checkpoint::KeepNewest(path_, content.step, keep));
  return writers_ > 1 ? rank_.store.Set(key_ + "done", "") : Status();
}

Status CheckpointWriter::Finish(bool waits_for_disk) {
  if (!write_.valid()) return {};
  if (rank_.info.rank == 0 && waits_for_disk && !ReadyWithin(0) &&
      !std::exchange(told_of_disk_, true)) {
    rank_.Log(LogLevel::kWarning, "the checkpoint of step " + std::to_string(step_) +
                                      " is still being written, and training waits for it: raise "
                                      "train.checkpoint_every, or write to a faster disk");
  }
  DiskWatch disk(rank_.store, launch::kProgressTimeoutMs);
  while (!ReadyWithin(launch::kPollMs)) {
    ENGINE_RETURN_IF_ERROR(rank_.abort.reason());
    ENGINE_RETURN_IF_ERROR(disk.Check());
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
