// What a user sees of a run.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "app/run/metrics.h"
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

  // On the first rank `sinks` are told, and lines printed; for --quiet only results are.
  Progress(bool first, bool quiet, Style style, const run::MetricsSinks& sinks)
      : prints_(first), quiet_(quiet), style_(style), sinks_(sinks) {}
  ~Progress() override { ClearLine(); }

  // What is going to run. The trainer has been made.
  void PrintStart(const train::RunConfig& run, const RankInfo& rank, train::Trainer& trainer) const;
  Status OnStep(const train::StepReport& report) override;
  Status OnEvaluation(const train::EvaluationReport& report) override;
  Status OnCheckpoint(int64_t step, const std::string& path) override;
  void OnPluginMetric(int32_t rank, std::string_view name, double value);  // [any-thread]
  Status OnText(const std::string& text) override;

 private:
  template <typename Write>
  Status Tell(Write write);
  void ClearLine();

  const bool prints_, quiet_;
  const Style style_;
  const run::MetricsSinks& sinks_;
  std::atomic<int64_t> step_ = 0;  // the last one that was reported
  run::StepLine line_;
  bool line_open_ = false;
  run::StepLine::Clock::time_point last_print_{};
};

}  // namespace engine::cli
