// Training runs with ranks as threads of this process, and what they leave behind.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/train/observer.h"
#include "engine/status.h"

namespace engine::test {

// What rank 0 was told, and what ranks had at the end.
struct Training {
  Status status;
  int exit_code = -1;
  std::vector<double> losses;  // of every step
  std::vector<int64_t> samples;
  std::vector<train::EvaluationReport> evaluations;
  // By rank, of runs that came to their end.
  std::vector<std::vector<float>> buffers;
  std::vector<std::vector<float>> parameters;  // with buffers, as they lie in memory
};

struct Members {
  int ranks = 1;
  int servers = 0;     // of their own
  std::string resume;  // --resume
  // > 0: the step after which rank 0 fails, as if it were killed, when there is a checkpoint.
  int64_t dies_after = 0;
};

// `overrides` are those of --set. The test fails if the run does, unless it may.
Training TrainWithThreads(const std::string& config_text, const Members& members,
                          const std::vector<std::string>& overrides, bool expect_ok = true);
inline Training TrainWithThreads(const std::string& config_text, int ranks,
                                 const std::vector<std::string>& overrides = {}) {
  return TrainWithThreads(config_text, Members{.ranks = ranks}, overrides);
}

// The tensors of a checkpoint, parameters and optimizer states, as bytes.
std::map<std::string, std::vector<uint8_t>> TensorsOf(const std::string& checkpoint);

// The numbers of a float32 tensor.
std::vector<float> FloatsOf(const std::vector<uint8_t>& bytes);

// The losses of the steps in a file of metrics.
std::vector<double> LossesOf(const std::string& metrics);

// The last event of a kind in a file of metrics, which may end within a line; null: none.
nlohmann::json LastEvent(const std::string& metrics, const std::string& event);

// The test fails where two lists differ by more than `tolerance`, relative to the expected value.
void ExpectSameLosses(const std::vector<double>& actual, const std::vector<double>& expected,
                      double tolerance, const std::string& what);

// The same for the float32 tensors of two checkpoints, relative to the largest element of each.
void ExpectSameTensors(const std::string& actual, const std::string& expected, double tolerance);

}  // namespace engine::test
