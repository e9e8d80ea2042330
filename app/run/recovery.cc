// In the store of the ranks that begin again:
//
//   "recovery/step/" RANK   the step whose parameters it has in memory, or -1
//   "recovery/file"         of the first rank with the newest: the path of its file on one host, else the
//                           number of parts
//   "recovery/storage"      of rank 0, where no rank has any: a checkpoint of the run, or empty
//   "recovery/part/" I      kPartBytes of it, the last one less; emptied when all have read it
#include "app/run/recovery.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <utility>
#include <vector>

#include "app/checkpoint/checkpoint.h"
#include "app/checkpoint/rank_states.h"
#include "app/checkpoint/resume.h"
#include "app/launch/deadlines.h"
#include "app/launch/member.h"
#include "app/run/training.h"
#include "core/base/store.h"

namespace engine::run {
namespace {

constexpr int64_t kPartBytes = 32 << 20;
constexpr char kFile[] = "recovery/file";
constexpr char kStorage[] = "recovery/storage";

std::string PartKey(int64_t part) {
  return "recovery/part/" + std::to_string(part);
}

std::string PathOf(const kit::UniqueFd& file) {
  return fmt::format("/proc/{}/fd/{}", getpid(), file.get());
}

Status Failed(const char* action) {
  return Status::Error(StatusCode::kStorage,
                       "cannot %s the state of the run for ranks that begin again: %s", action,
                       strerror(errno));
}

}  // namespace

Recovery::Recovery(const config::Config& config, base::RankContext& rank,
                   const launch::LaunchPlan& plan, std::string resume,
                   std::filesystem::file_time_type earlier)
    : config_(config),
      rank_(rank),
      ranks_(plan.info.world_size),
      resume_(std::move(resume)),
      earlier_(earlier),
      best_(config.best()),
      survives_(plan.survives() && rank.info.servers == 0) {}

config::Config Recovery::ConfigNow() const {
  if (!survives_) return config_;
  return config_.SurvivingLosses(ranks_, rank_.info.world_size);
}

Result<std::string> Recovery::Begin() {
  if (!survives_) return resume_;
  ENGINE_ASSIGN_OR_RETURN(again_, rank_.store.Has(launch::kRegroupedKey));
  return again_ ? Agree(-1, nullptr) : resume_;
}

Status Recovery::Declare() {
  if (!survives_ || rank_.info.rank != 0) return {};
  return rank_.store.Set(launch::kRegroupKey, "");
}

Status Recovery::OnMade(train::Trainer& trainer) {
  if (!survives_) return {};
  file_.Close();
  step_ = -1;
  info_ = {};
  own_ = {};
  while (parts_ > 0) ENGINE_RETURN_IF_ERROR(rank_.store.Set(PartKey(--parts_), ""));
  exec::UpdateStrategy& updates = trainer.executor().updates();
  if (!updates.asynchronous() && updates.served() == nullptr) return {};
  survives_ = false;
  return rank_.store.Set(launch::kNoRegroupKey, "");
}

bool Recovery::Survives(const Status& failure) const {
  return survives_ && launch::MayFollowLoss(failure.code());
}

Result<std::string> Recovery::After(const Status& failure,
                                    std::unique_ptr<train::Trainer>& trainer) {
  // Once for each, before ranks have other numbers.
  if (trainer != nullptr && info_.world_size == 0) {
    ENGINE_ASSIGN_OR_RETURN(step_, trainer->Salvage());
    info_ = InfoOf(config_.run(), rank_.info, trainer->StateAt(step_), best_);
  }
  if (Status ended = rank_.regroup(failure); !ended.ok()) {
    survives_ = false;
    return ended;
  }
  again_ = true;
  return Agree(step_, &trainer);
}

Result<std::string> Recovery::Agree(int64_t step, std::unique_ptr<train::Trainer>* trainer) {
  const int64_t timeout_ms = rank_.info.rendezvous_timeout_ms;
  const auto key_of = [](int32_t rank) { return "recovery/step/" + std::to_string(rank); };
  ENGINE_RETURN_IF_ERROR(rank_.store.Set(key_of(rank_.info.rank), std::to_string(step)));
  int64_t newest = -1;
  int32_t source = 0;
  for (int32_t rank = 0; rank < rank_.info.world_size; ++rank) {
    ENGINE_ASSIGN_OR_RETURN(const std::string text, rank_.store.Get(key_of(rank), timeout_ms));
    const int64_t has = std::atoll(text.c_str());
    if (has > newest) source = rank;
    newest = std::max(newest, has);
  }
  if (newest < 0) {
    if (trainer != nullptr) trainer->reset();  // which may be writing a checkpoint
    own_ = {};
    return FromStorage();
  }
  const bool trains = trainer != nullptr && *trainer != nullptr;
  if (trains) ENGINE_RETURN_IF_ERROR(own_.ReturnTo((*trainer)->executor(), newest));
  if (rank_.info.rank == source) {
    if (trains) ENGINE_RETURN_IF_ERROR(Write(**trainer));
    ENGINE_RETURN_IF_ERROR(Publish());
    rank_.Log(LogLevel::kInfo,
              fmt::format("all ranks go on from step {}, as this one has it", step));
  } else {
    ENGINE_RETURN_IF_ERROR(Fetch());
  }
  step_ = newest;
  return PathOf(file_);
}

// What ranks have is of no one step: on GPUs, where each updates a part, or none has got so far.
// The file is that of rank 0.
Result<std::string> Recovery::FromStorage() const {
  if (rank_.info.rank != 0) return rank_.store.Get(kStorage, launch::kProgressTimeoutMs);
  std::vector<Status> damaged;
  const std::string& own = config_.output().checkpoint;
  std::string path = own.empty() ? "" : checkpoint::NewestCheckpoint(own, &damaged, earlier_);
  if (path.empty()) path = resume_;
  rank_.Log(LogLevel::kWarning,
            "no rank has the parameters of one whole step in its memory: all go back to " +
                (path.empty() ? "the beginning" : path));
  ENGINE_RETURN_IF_ERROR(rank_.store.Set(kStorage, path));
  return path;
}

// In memory where there is room. It has a name for as long as it takes to write it.
Status Recovery::Write(train::Trainer& trainer) {
  const exec::Wire* const wire = trainer.executor().wire();
  if (wire != nullptr && wire->state_count() > 0) {
    rank_.Log(LogLevel::kWarning, "what hook '" + wire->layout().name +
                                      "' has kept on the rank that was lost is lost with it");
  }
  Status written;
  for (const std::string& folder :
       {std::string("/dev/shm"), std::filesystem::temp_directory_path().string()}) {
    const std::string path = fmt::format("{}/engine-recovery-{}", folder, getpid());
    ENGINE_ASSIGN_OR_RETURN(
        const checkpoint::CheckpointContent content,
        checkpoint::ContentOf(trainer.executor(), info_, own_.Saved(trainer.executor())));
    written = checkpoint::WriteCheckpoint(path, content);
    if (!written.ok()) continue;
    file_ = kit::UniqueFd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
    unlink(path.c_str());
    return file_ ? Status() : Failed("open");
  }
  return written;
}

Status Recovery::Publish() {
  if (rank_.info.one_host != 0) return rank_.store.Set(kFile, PathOf(file_));
  struct stat about = {};
  if (fstat(file_.get(), &about) != 0) return Failed("read");
  std::string part;
  for (int64_t at = 0; at < about.st_size; at += kPartBytes, ++parts_) {
    part.resize(static_cast<size_t>(std::min<int64_t>(kPartBytes, about.st_size - at)));
    if (pread(file_.get(), part.data(), part.size(), at) != std::ssize(part)) return Failed("read");
    ENGINE_RETURN_IF_ERROR(rank_.store.Set(PartKey(parts_), part));
  }
  return rank_.store.Set(kFile, std::to_string(parts_));
}

// A file of its own, so that this rank has it also when the other is lost.
Status Recovery::Fetch() {
  ENGINE_ASSIGN_OR_RETURN(const std::string from,
                          rank_.store.Get(kFile, launch::kProgressTimeoutMs));
  if (rank_.info.one_host != 0) {
    file_ = kit::UniqueFd(open(from.c_str(), O_RDONLY | O_CLOEXEC));
    if (file_) return {};
    const bool lost = errno == ENOENT || errno == ESRCH;
    return lost ? Status::Error(StatusCode::kPeerLost,
                                "the rank that has the state of the run is gone")
                : Failed("open");
  }
  file_ = kit::UniqueFd(memfd_create("engine-recovery", MFD_CLOEXEC));
  const int64_t parts = std::atoll(from.c_str());
  for (int64_t part = 0; part < parts; ++part) {
    ENGINE_ASSIGN_OR_RETURN(const std::string bytes,
                            rank_.store.Get(PartKey(part), launch::kProgressTimeoutMs));
    for (size_t at = 0; at < bytes.size();) {
      const ssize_t size = write(file_.get(), bytes.data() + at, bytes.size() - at);
      if (size <= 0) return Failed("keep");
      at += static_cast<size_t>(size);
    }
  }
  return {};
}

}  // namespace engine::run
