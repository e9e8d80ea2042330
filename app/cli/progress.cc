#include "app/cli/progress.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <utility>

#include "app/plugins/roles.h"
#include "app/run/evaluation.h"

namespace engine::cli {
namespace {

constexpr auto kTerminalInterval = std::chrono::milliseconds(200);
constexpr auto kPlainInterval = std::chrono::seconds(10);

// 811008 as "811,008".
std::string Grouped(int64_t number) {
  std::string text = std::to_string(number);
  for (size_t i = text.size(); i > 3; i -= 3) text.insert(i - 3, 1, ',');
  return text;
}

std::string Duration(double seconds) {
  const auto total = static_cast<int64_t>(seconds + 0.5);
  if (total < 3600) return fmt::format("{}:{:02}", total / 60, total % 60);
  return fmt::format("{}:{:02}:{:02}", total / 3600, total / 60 % 60, total % 60);
}

template <typename... Values>
void Print(fmt::format_string<Values...> format, Values&&... values) {
  fmt::print(format, std::forward<Values>(values)...);
  std::fflush(stdout);
}

}  // namespace

// Figures are means over the steps since the last line; ETA follows from their wall time.
std::string Progress::StepLine(const train::StepReport& report) const {
  const double wall = std::chrono::duration<double>(Clock::now() - window_begin_).count();
  const double per_step = wall / static_cast<double>(window_steps_);
  std::string communication;
  if (knows_communication_) {
    communication = fmt::format("  comm {:.0f} %",
                                100 * window_communication_ / std::max(window_seconds_, 1e-9));
  }
  return fmt::format(
      "step {:>{}}/{}  loss {:.4f}  {:.0f} samples/s{}  lr {:.2e}  epoch {:.2f}  ETA {}",
      report.step, std::to_string(report.steps).size(), report.steps,
      window_loss_ / static_cast<double>(window_steps_), window_samples_ / wall, communication,
      report.learning_rate, report.epoch,
      Duration(per_step * static_cast<double>(report.steps - report.step)));
}

void Progress::PrintStart(const train::RunConfig& run, const RankInfo& rank,
                          train::Trainer& trainer) const {
  if (!prints_ || quiet_) return;
  int64_t elements = 0;  // of frozen parameters too
  for (const graph::Parameter& parameter : trainer.executor().memory().graph().parameters) {
    if (!parameter.buffer) elements += parameter.shape.Count();
  }
  const int32_t ranks = rank.world_size;
  const DatasetInfo data = trainer.data();
  Print("{} {}, {} parameters, {}: {} samples and {} held out, {} steps of {}, plugins {}\n", ranks,
        ranks == 1 ? "rank" : "ranks", Grouped(elements), data.name, Grouped(data.train_samples),
        Grouped(data.held_out_samples), Grouped(trainer.steps()),
        Grouped(run.train.GlobalBatch(ranks)), plugins::NamesOf(run.plugins));
}

Status Progress::OnStep(const train::StepReport& report) {
  if (metrics_ != nullptr) ENGINE_RETURN_IF_ERROR(metrics_->Write(report));
  if (!prints_ || quiet_) return {};
  const auto now = Clock::now();
  if (window_steps_ == 0) {
    window_begin_ = now - std::chrono::duration_cast<Clock::duration>(
                              std::chrono::duration<double>(report.seconds));
  }
  ++window_steps_;
  window_samples_ += static_cast<double>(report.samples);
  window_seconds_ += report.seconds;
  knows_communication_ = report.communication_seconds.has_value();
  window_communication_ += report.communication_seconds.value_or(0);
  window_loss_ += report.loss;
  const auto interval =
      terminal_ ? Clock::duration(kTerminalInterval) : Clock::duration(kPlainInterval);
  const bool edge = report.step == 1 || report.step == report.steps;
  if (!edge && now - last_print_ < interval) return {};
  last_print_ = now;
  // The first and the last line stay on the terminal.
  Print("{}{}{}", terminal_ ? "\r\x1b[K" : "", StepLine(report), terminal_ && !edge ? "" : "\n");
  line_open_ = terminal_ && !edge;
  window_steps_ = 0;
  window_samples_ = window_seconds_ = window_communication_ = window_loss_ = 0;
  return {};
}

Status Progress::OnEvaluation(const train::EvaluationReport& report) {
  if (metrics_ != nullptr) ENGINE_RETURN_IF_ERROR(metrics_->Write(report));
  if (!prints_) return {};
  ClearLine();
  Print("step {}  held-out {}  ({} targets in {:.1f} s)\n", report.step, run::Describe(report),
        report.targets, report.seconds);
  return {};
}

Status Progress::OnCheckpoint(int64_t step, const std::string& path) {
  if (metrics_ != nullptr) ENGINE_RETURN_IF_ERROR(metrics_->WriteCheckpoint(step, path));
  if (!prints_ || quiet_) return {};
  ClearLine();
  Print("step {}  checkpoint {}\n", step, path);
  return {};
}

Status Progress::OnText(const std::string& prompt, const std::string& text) {
  if (!prints_) return {};
  ClearLine();
  Print("--- generated text\n{}{}\n---\n", prompt, text);
  return {};
}

void Progress::ClearLine() {
  if (!line_open_) return;
  Print("\r\x1b[K");
  line_open_ = false;
}

}  // namespace engine::cli
