// How many checkpoints of a run stay on disk (docs/checkpoint.md).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/status.h"

namespace engine::checkpoint {

// The second name of the checkpoint of a step: "model.000100.safetensors" of "model.safetensors"
// and step 100.
std::string NameAtStep(const std::string& path, int64_t step);

// "model.safetensors" of its second name at `step`; any other path as it is.
std::string FirstName(const std::string& path, int64_t step);

// The files at `path` and its second names, the one that was written last first. There need be none.
std::vector<std::string> FindCheckpoints(const std::string& path);

// Whether the folder of `path` can hold several checkpoints, which takes a file system with hard
// links: to be asked before a run. Always OK with keep = 1. kStorage.
Status CheckCanKeep(const std::string& path, int64_t keep);

// Gives the checkpoint that was written to `path` after `step`, and is durable, its second name,
// and removes the oldest ones with such names, so that there are at most `keep`. First to go are
// those of larger steps, smallest ones first: they are of a run that was left for an earlier
// checkpoint. A kill at any moment leaves `path` as it is, no more than `keep` second names, and
// `keep` different checkpoints once there were so many.
//
// With keep = 1 no second name is given or looked at. kStorage.
Status KeepNewest(const std::string& path, int64_t step, int64_t keep);

}  // namespace engine::checkpoint
