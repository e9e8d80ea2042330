// Checkpoints: parameters and optimizer state of a run in one safetensors file
// (docs/checkpoint.md).
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "app/checkpoint/atomic_file.h"
#include "app/checkpoint/data_digest.h"
#include "app/checkpoint/safetensors.h"
#include "app/checkpoint/safetensors_header.h"
#include "app/checkpoint/sample_position.h"
#include "app/checkpoint/spill_file.h"
#include "core/exec/executor.h"
#include "core/exec/model_memory.h"
#include "engine/status.h"

namespace engine::checkpoint {

// What the classes of each target are called, by the target's name; of those alone whose classes
// have names.
using ClassNameLists = std::map<std::string, std::vector<std::string>>;

struct CheckpointInfo {
  int64_t step = 0;    // steps done
  std::string config;  // as Config::Print gives it
  std::string optimizer;
  uint32_t optimizer_state_version = 0;  // OptimizerTraits, of the writer
  // What a run that goes on from here is compared with, see PlanResume (app/checkpoint/resume.h).
  uint64_t seed = 0;
  int32_t world_size = 0;
  int64_t global_batch = 0;  // 0: the file does not say; it cannot be continued
  std::string data;          // DatasetInfo::digest of the training data
  SamplePosition position;   // in the training data, after `step`
  std::string best;          // what the run knows of its best evaluation (app/run/best.h)
  ClassNameLists class_names;
};

// What each rank keeps for itself, of all ranks (app/checkpoint/rank_states.h).
struct RankStates {
  std::vector<NamedTensor> tensors;
  std::map<std::string, std::string> versions;  // metadata
  std::shared_ptr<SpillFile> spill;             // where tensors are
};

// Host memory for copies, which stays: making its pages takes longer than to fill them.
struct CopyMemory {
  std::unique_ptr<std::byte[]> bytes;
  size_t size_bytes = 0;
};

// Which of the ranks that write a file together: each has the same parameters, and the same states or,
// where they are sharded, its own.
struct Writer {
  int32_t rank = 0;
  int32_t count = 1;
};

// What one of them writes: elements of a float32 tensor, or all of another.
struct Part {
  size_t tensor = 0;
  uint64_t begin = 0;  // in the data; at a block of DataDigest
  const void* data = nullptr;
  size_t size_bytes = 0;
};

// What is written: every parameter and optimizer state, and what each rank keeps.
struct CheckpointContent {
  int64_t step = 0;
  SafetensorsHeader header;  // of the first writer it has all
  std::vector<Part> parts;   // in host memory
  bool copied = false;       // nothing of it is the executor's, which may go on
  std::shared_ptr<SpillFile> spill;
  std::shared_ptr<CopyMemory> memory;
};

// After Flush. `kept` is for the first writer. `copies`: copied to `memory`, if it has the room or there is
// enough of it; what is on an accelerator is copied anyway, and without memory this is kResourceExhausted.
Result<CheckpointContent> ContentOf(
    const exec::Executor& executor, const CheckpointInfo& info, const RankStates& kept = {},
    bool copies = false, std::shared_ptr<CopyMemory> memory = std::make_shared<CopyMemory>(),
    Writer writer = {});

// Writes the parts of `content` to `file`, whose data begins at `data_begin`, and returns their digest.
// kConfig when a number is not finite. [any-thread]
Result<DataDigest> WriteParts(const CheckpointContent& content, uint64_t data_begin,
                              AtomicFile& file);
// Of the first writer, when all have written their parts, of which `digest` is the sum. [any-thread]
Status FinishFile(const CheckpointContent& content, const DataDigest& digest, AtomicFile& file);

// Of the only writer. See WriteSafetensors for what a failure leaves behind, and AtomicFile for
// `progress`. The file may be the one that the run was continued from, and be open here or elsewhere: what
// is open keeps the old content. [any-thread]
Status WriteCheckpoint(const std::string& path, const CheckpointContent& content,
                       std::function<void()> progress = nullptr);

struct OpenedCheckpoint {
  std::unique_ptr<SafetensorsFile> file;
  CheckpointInfo info;
  std::string digest;  // of the whole file, for ranks to compare; empty if another program wrote it
};

// Opens a checkpoint. kMissingInput; kBadData when the file is damaged, or a safetensors file but
// no checkpoint of ours.
Result<OpenedCheckpoint> OpenCheckpoint(const std::string& path);

// Whether a safetensors file is a checkpoint, and whether a tensor of one is a parameter (or buffer).
bool IsCheckpoint(const SafetensorsFile& file);
bool IsParameter(std::string_view tensor);

// A tensor of float32, as all is that the engine itself keeps. kBadData when it has another shape.
Result<TensorView> FindLike(const SafetensorsFile& file, const std::string& name,
                            const Shape& shape);

// Copies the parameters of the file into `memory`. kBadData names the parameter that is missing,
// has another shape or is not in the model.
Status LoadParameters(const SafetensorsFile& file, exec::ModelMemory& memory);

// State `index` of the optimizer of all parameters, in host memory and in the layout of
// memory.layout(): trainable_count elements, buckets with their padding (zeros). For buckets that are
// kept elsewhere: &states[bucket.offset] is what ParameterClient::Store wants. kBadData when the
// format of the states is another, or a parameter's state is missing or has another shape.
Result<std::vector<float>> ReadStates(const OpenedCheckpoint& checkpoint,
                                      const exec::ModelMemory& memory,
                                      const OptimizerTraits& traits, int32_t index);

// Copies all states of the file into `states`, which are sharded or not: then the part of `rank`.
// Any number of ranks may read what any other number has written. Errors as ReadStates.
Status LoadStates(const OpenedCheckpoint& checkpoint, const exec::ModelMemory& memory,
                  const OptimizerTraits& traits, const RankInfo& rank,
                  const exec::OptimizerStates& states);

// Gives `executor` the parameters, what this rank keeps for itself, and the optimizer states of the
// file: this rank's part if they are sharded, and if servers keep them all on rank 0, for
// Executor::ShareParameters. Before its first step. [setup]
Status LoadCheckpoint(const OpenedCheckpoint& checkpoint, exec::Executor& executor,
                      const RankInfo& rank);

// What becomes of states that this run has no place for (of parameters that it does not train, of
// another hook, of an optimizer with other options), and of those that it lacks; a sentence each.
std::vector<std::string> StateWarnings(const OpenedCheckpoint& checkpoint,
                                       const exec::Executor& executor, int32_t world_size);

}  // namespace engine::checkpoint
