// Which evaluation of a run was the best so far, and whether there is hope for a better one.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "app/config/config.h"
#include "app/run/training.h"
#include "core/train/trainer.h"

namespace engine::run {

// Stands between a trainer and `observer`, which is borrowed.
class Best final : public RunObserver {
 public:
  Best(const config::BestOptions& options, RunObserver& observer)
      : options_(options), observer_(observer) {}

  Status OnStep(const train::StepReport& report) override { return observer_.OnStep(report); }
  Status OnEvaluation(const train::EvaluationReport& report) override;
  Status OnCheckpoint(int64_t step, const std::string& path) override {
    return observer_.OnCheckpoint(step, path);
  }
  Status OnText(const std::string& prompt, const std::string& text) override {
    return observer_.OnText(prompt, text);
  }

  // Of the last evaluation. kConfig when it has no such figure, with those that it has.
  Result<train::Judgement> Judge();
  // "stopped early: the held-out loss was best, 0.25, after step 400, and no better in 3 ..."
  std::string Describe() const;

  // For checkpoints, so that a run that goes on knows it: "VALUE STEP MISSES", or empty.
  std::string Save() const;
  void Load(const std::string& text);

 private:
  bool IsOver() const;

  const config::BestOptions options_;
  RunObserver& observer_;
  train::EvaluationReport last_;
  std::optional<double> value_;  // of the best
  int64_t step_ = 0;             // of the best
  int64_t misses_ = 0;           // evaluations since
};

}  // namespace engine::run
