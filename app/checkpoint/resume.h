// A run that goes on from a checkpoint: where, and whether it is the same run.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "app/checkpoint/checkpoint.h"
#include "app/config/config.h"
#include "core/base/store.h"
#include "engine/status.h"

namespace engine {

// Of a run from the beginning by default.
struct ResumePoint {
  int64_t step = 0;         // steps done; the next one is step + 1
  int64_t first_batch = 0;  // BatchOptions::first_step of the next step
  // What differs between the runs so that the result is not that of one run; a sentence each.
  std::vector<std::string> warnings;
};

// Where `run` (its step, config and position are not looked at) over `samples` training samples
// goes on from `stored`. With the same optimizer, seed, data and global batch it sees the samples
// that an uninterrupted run would see, in the same steps, with any number of ranks; with the same
// number of ranks its results are the same to the bit. With another global batch the number of the
// step and the place in the epoch are kept.
// kConfig when the optimizer is another; kBadData when the file does not say how far its run came.
Result<ResumePoint> PlanResume(const CheckpointInfo& stored, const CheckpointInfo& run,
                               int64_t samples);

// What a run trains on, as far as its length depends on it. Each at least 1.
struct TrainingAmount {
  int64_t samples = 0;
  int64_t targets_per_sample = 0;
  int64_t global_batch = 0;
};

// The number of the last step of a run, which has exactly one of steps, epochs and tokens: that
// step, or the first one with which the run has seen so many epochs, or targets, of its data.
// kConfig when it is done already at `point`.
Result<int64_t> LastStep(const config::Train& train, const TrainingAmount& amount,
                         const ResumePoint& point);

// The position after `step` of a run that went on from `point` (or began: {}), for its checkpoint.
SamplePosition PositionAt(int64_t step, const ResumePoint& point, int64_t samples,
                          int64_t global_batch);

// Gives `executor` the parameters, the states of hooks (LoadHookStates) and the optimizer states of
// the file: this rank's part if they are sharded, and if servers keep them all on rank 0, for
// Executor::ShareParameters. Before its first step. [setup]
Status LoadCheckpoint(const OpenedCheckpoint& checkpoint, Executor& executor, const RankInfo& rank);

// For ranks that take the place of lost ones (RankInfo::incarnation): by then the file may be a
// newer one. Rank 0 says where the run began, they read it.
Status PublishResumePoint(Store& store, const ResumePoint& point);
Result<ResumePoint> PublishedResumePoint(Store& store, int64_t timeout_ms);

}  // namespace engine
