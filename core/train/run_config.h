// What the engine needs to know of a run: plain values, which app/config reads from a file and checks.
// Files that a run writes (checkpoints, metrics, traces) are the caller's: see TrainObserver.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "core/plugin/plugin_set.h"
#include "core/train/batch_source.h"

namespace engine::train {

// Factors for the parameters whose name starts with `prefix`; the longest prefix that fits counts.
struct ParameterGroup {
  std::string prefix;
  double learning_rate_scale = 1;
  double weight_decay_scale = 1;
};

// Of a run from the beginning by default.
struct RunStart {
  int64_t step = 0;         // steps done; the next one is step + 1
  int64_t first_batch = 0;  // BatchRequest::first_step of the next step

  // That of the step after `done`. Batches are numbered as the steps are from here on; how many
  // came before depends on the size that they had.
  int64_t BatchAfter(int64_t done) const { return first_batch + (done - step); }
};

struct RunRange {
  RunStart start;
  int64_t last_step = 0;
  bool again = false;  // what is due after the step of `start` may not have been done
};

// How long a run is: exactly one of the three is set. Tokens are targets.
struct RunLength {
  std::optional<int64_t> steps;
  std::optional<double> epochs;
  std::optional<int64_t> tokens;
};

struct TrainOptions {
  RunLength length;
  // Samples of one step over all ranks, or of each rank: exactly one of the two is set.
  std::optional<int64_t> global_batch, batch_per_rank;
  // Of step `step` of 1 .. steps.
  std::function<double(int64_t step, int64_t steps, int64_t steps_per_epoch)> learning_rate;
  int64_t evaluate_every = 0;       // steps; 0: only at the end; -1: never
  int64_t evaluate_samples = 0;     // at most so many; 0: all
  int64_t checkpoint_every = 0;     // steps; 0: only at the end
  int64_t check_ranks_every = 100;  // steps; 0: never
  bool shard_optimizer = false;
  bool sparse_pull = false;
  int64_t micro_batches = 1;
  double loss_scale = 1;
  bool record_steps = false;
  std::vector<ParameterGroup> groups;
  std::vector<std::string> frozen;  // parameters whose name starts with one of these do not train
  std::vector<std::string> recompute;  // likewise layers: see Node::recomputed

  int64_t GlobalBatch(int32_t ranks) const {
    return global_batch ? *global_batch : batch_per_rank.value_or(1) * ranks;
  }
  // How many of the `samples` that a rank may have in a step it computes at once: those of its
  // largest micro-batch.
  int64_t SamplesAtOnce(int64_t samples) const { return CeilDiv(samples, micro_batches); }
};

struct CommunicationOptions {
  int64_t timeout_ms = 30000;             // of a transfer in which nothing moves
  int64_t rendezvous_timeout_ms = 30000;  // for all ranks to find each other
};

// Beside what the dataset plugin is told (PluginSelection::dataset).
struct DataOptions {
  bool shuffle = true;
  int32_t prefetch = 2;  // batches made ready ahead of the step
  // Of images to train on: cut out of themselves with so many rows and columns of zeros around
  // them; every other one, on average, mirrored.
  int32_t crop_padding = 0;
  bool flip = false;
};

struct RunConfig {
  uint64_t seed = 1;
  plugin::PluginSelection plugins;
  DataOptions data;
  TrainOptions train;
  CommunicationOptions communication;
  int64_t trace_spans = 65536;  // the newest so many of each rank are kept
  std::string text;  // the whole configuration, as ranks compare it and checkpoints keep it
};

}  // namespace engine::train
