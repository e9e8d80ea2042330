// What a user sees of a run: a live line on a terminal, a plain line every ten seconds elsewhere.
#pragma once

#include <chrono>
#include <string>

#include "app/run/metrics_file.h"
#include "app/run/training.h"

namespace engine::cli {

class Progress final : public run::RunObserver {
 public:
  // `metrics` may be null. `prints` is false on all ranks but the first, and for --quiet only
  // results are printed.
  Progress(bool prints, bool quiet, bool terminal, run::MetricsFile* metrics)
      : prints_(prints), quiet_(quiet), terminal_(terminal), metrics_(metrics) {}
  ~Progress() override { ClearLine(); }

  // What is going to run. The trainer has been made.
  void PrintStart(const train::RunConfig& run, const RankInfo& rank, train::Trainer& trainer) const;
  Status OnStep(const train::StepReport& report) override;
  Status OnEvaluation(const train::EvaluationReport& report) override;
  Status OnCheckpoint(int64_t step, const std::string& path) override;
  Status OnText(const std::string& prompt, const std::string& text) override;

 private:
  using Clock = std::chrono::steady_clock;
  std::string StepLine(const train::StepReport& report) const;
  void ClearLine();

  const bool prints_, quiet_, terminal_;
  run::MetricsFile* const metrics_;
  bool line_open_ = false;
  Clock::time_point last_print_{};
  // Since the last printed line, so that its figures are of now and not of the whole run.
  Clock::time_point window_begin_{};
  double window_samples_ = 0, window_seconds_ = 0, window_communication_ = 0, window_loss_ = 0;
  bool knows_communication_ = true;  // not on an accelerator
  int64_t window_steps_ = 0;
};

}  // namespace engine::cli
