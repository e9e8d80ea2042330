// Which evaluation of a run was the best so far, and whether there is hope for a better one.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "app/config/config.h"
#include "core/train/trainer.h"

namespace engine::run {

class Best {
 public:
  explicit Best(const config::BestOptions& options) : options_(options) {}

  // Of each evaluation, in order; of the last one perhaps again. One without the figure, or with NaN, is
  // not better.
  train::Judgement Judge(const train::EvaluationReport& report);
  // "stopped early: the held-out loss was best, 0.25, after step 400, and no better in 3 ..."
  std::string Describe() const;

  // For checkpoints, so that a run that goes on knows it: "VALUE STEP MISSES LAST METRIC", or empty. False:
  // `text` is of another metric, so that the best begins anew.
  std::string Save() const;
  bool Load(const std::string& text);

 private:
  const config::BestOptions options_;
  std::optional<double> value_;  // of the best
  int64_t step_ = 0;             // of the best
  int64_t misses_ = 0;           // evaluations since
  int64_t last_ = 0;             // step of the last one
};

}  // namespace engine::run
