// What goes into a training step, and what comes out.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "engine/status.h"

namespace engine::exec {

// What the ranks of a step sum up: the loss op writes the first three, the executor the others.
struct StepStatistics {
  float loss_sum = 0;   // over targets
  float count = 0;      // of targets, or the sum of their weights
  float correct = 0;    // predictions, likewise
  float stop = 0;       // ranks that were asked to stop
  float marks[8] = {};  // of StepInput::check; else zero
};

class ModelMemory;
class UpdateStrategy;

// Whether all ranks still have the same parameters and optimizer states. [compute-lane]
class ReplicaCheck {
 public:
  virtual ~ReplicaCheck() = default;
  // Takes digests of what this rank has after `step`, as marks whose sums over ranks are zero where
  // all ranks have the same.
  virtual Status Take(const ModelMemory& memory, const UpdateStrategy& updates, uint64_t step,
                      std::span<float> marks) = 0;
  // By the sums of what was taken last: OK, or which ranks differ first in which parameter, in the
  // same words on all ranks. Collective where the sums are not zero.
  virtual Status Conclude(std::span<const float> sums) = 0;
};

struct StepInput {
  const void* input = nullptr;
  const void* target = nullptr;
  std::span<const void* const> others = {};  // of Graph::others, in their order
  int64_t samples = 0;                       // at most as many as the graph's times micro_batches
  int64_t first_sample = 0;  // position of the first of them among those of all ranks
  int64_t all_samples = 0;   // of all ranks; 0: as many on each as here
  uint64_t step = 1;         // from 1
  float learning_rate = 0;
  bool stop = false;  // this rank was asked to stop
  // Where set, sees what the step before has left: all of it, and nothing of this step. Not on an
  // accelerator, where only the device knows when that is.
  ReplicaCheck* check = nullptr;
};

struct StepResult {
  // Whose statistics these are: those of the step itself, and on an accelerator of the one before
  // it, or 0 for none. Summed over all ranks.
  uint64_t step = 0;
  StepStatistics statistics;
  double seconds = 0;
  // Of them the compute lane had nothing to do but wait: exposed communication. Nothing on an
  // accelerator, whose lane the host does not see.
  std::optional<double> waited_seconds;
};

}  // namespace engine::exec
