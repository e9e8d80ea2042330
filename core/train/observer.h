// What a training run tells those who watch it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/status.h"

namespace engine::train {

struct StepReport {
  int64_t step = 0;   // from 1
  int64_t steps = 0;  // of the whole run
  double epoch = 0;   // passes over the data so far
  double loss = 0;    // mean over the targets of the step, all ranks
  double accuracy = 0;
  double learning_rate = 0;
  int64_t samples = 0;                          // of the step, all ranks
  double seconds = 0;                           // of the step
  std::optional<double> communication_seconds;  // of them this rank only waited for transfers;
                                                // not known of an accelerator
};

struct Metric {
  std::string name;
  double value = 0;
};

struct EvaluationReport {
  int64_t step = 0;
  double loss = 0;  // mean over held-out targets
  int64_t targets = 0;
  std::vector<Metric> metrics;  // what else whoever evaluates has measured
  double seconds = 0;
};

// Called on the thread of the rank; an error ends the run.
class TrainObserver {
 public:
  virtual ~TrainObserver() = default;
  virtual Status OnStep(const StepReport& /*report*/) { return {}; }
  virtual Status OnEvaluation(const EvaluationReport& /*report*/) { return {}; }
};

}  // namespace engine::train
