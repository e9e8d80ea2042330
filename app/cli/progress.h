// What a user sees of a run.
#pragma once

#include <map>
#include <string>

#include "app/run/metrics_file.h"
#include "app/run/step_line.h"
#include "app/run/training.h"

namespace engine::cli {

class Progress final : public run::RunObserver {
 public:
  // Of steps: a line that is written again and again, one every ten seconds, or nothing.
  enum class Style { kLive, kPlain, kNone };
  // --progress plain, live or none; of "auto" live where `terminal` is one that can show it.
  static Style StyleOf(const std::string& wanted, bool terminal,
                       const std::map<std::string, std::string>& variables);

  // `metrics` may be null. `prints` is false on all ranks but the first, and for --quiet only
  // results are printed.
  Progress(bool prints, bool quiet, Style style, run::MetricsFile* metrics)
      : prints_(prints), quiet_(quiet), style_(style), metrics_(metrics) {}
  ~Progress() override { ClearLine(); }

  // What is going to run. The trainer has been made.
  void PrintStart(const train::RunConfig& run, const RankInfo& rank, train::Trainer& trainer) const;
  Status OnStep(const train::StepReport& report) override;
  Status OnEvaluation(const train::EvaluationReport& report) override;
  Status OnCheckpoint(int64_t step, const std::string& path) override;
  Status OnText(const std::string& prompt, const std::string& text) override;

 private:
  void ClearLine();

  const bool prints_, quiet_;
  const Style style_;
  run::MetricsFile* const metrics_;
  run::StepLine line_;
  bool line_open_ = false;
  run::StepLine::Clock::time_point last_print_{};
};

}  // namespace engine::cli
