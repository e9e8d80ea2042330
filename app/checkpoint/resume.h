// A run that goes on from a checkpoint: where, and whether it is the same run.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "app/checkpoint/checkpoint.h"
#include "core/train/run_config.h"
#include "engine/status.h"

namespace engine::checkpoint {

// Where `run` (its step, config and position are not looked at) over `samples` training samples
// goes on from `stored`. With the same optimizer, seed, data and global batch it sees the samples
// that an uninterrupted run would see, in the same steps, with any number of ranks; with the same
// number of ranks its results are the same to the bit. With another global batch the number of the
// step and the place in the epoch are kept.
// kConfig when the optimizer is another; kBadData when the file does not say how far its run came.
Result<train::RunStart> PlanResume(const CheckpointInfo& stored, const CheckpointInfo& run,
                                   int64_t samples);

// The checkpoint that a run which writes to `path` can go on from: the newest that is not damaged; empty:
// none. `damaged` gets what is wrong with newer ones. Those that were written `earlier` do not count.
std::string NewestCheckpoint(
    const std::string& path, std::vector<Status>* damaged,
    std::filesystem::file_time_type earlier = std::filesystem::file_time_type::min());

// kConfig when there is a file at `path`, or, with keep > 1, at a second name of it, unless `resume`, the
// checkpoint that the run goes on from, is one of them: then it is the run's own.
// `key` names it; nothing is at an empty path.
Status CheckMayReplace(const char* key, const std::string& path, int64_t keep,
                       const std::string& resume);

// What differs between the runs so that the result is not that of one run; a sentence each.
std::vector<std::string> ResumeWarnings(const CheckpointInfo& stored, const CheckpointInfo& run);

}  // namespace engine::checkpoint
