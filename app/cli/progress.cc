#include "app/cli/progress.h"

#include <algorithm>
#include <cstdio>

namespace engine {
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
  const auto total = static_cast<long long>(seconds + 0.5);
  char text[32];
  if (total >= 3600) {
    std::snprintf(text, sizeof(text), "%lld:%02lld:%02lld", total / 3600, total / 60 % 60,
                  total % 60);
  } else {
    std::snprintf(text, sizeof(text), "%lld:%02lld", total / 60, total % 60);
  }
  return text;
}

}  // namespace

// Figures are means over the steps since the last line; ETA follows from their wall time.
std::string Progress::StepLine(const StepReport& report) const {
  const double wall = std::chrono::duration<double>(Clock::now() - window_begin_).count();
  const double per_step = wall / static_cast<double>(window_steps_);
  char communication[32] = "";
  if (knows_communication_) {
    std::snprintf(communication, sizeof(communication), "  comm %.0f %%",
                  100 * window_communication_ / std::max(window_seconds_, 1e-9));
  }
  char text[256];
  std::snprintf(text, sizeof(text),
                "step %*lld/%lld  loss %.4f  %.0f samples/s%s  lr %.2e  epoch %.2f  ETA %s",
                static_cast<int>(std::to_string(report.steps).size()),
                static_cast<long long>(report.step), static_cast<long long>(report.steps),
                window_loss_ / static_cast<double>(window_steps_), window_samples_ / wall,
                communication, report.learning_rate, report.epoch,
                Duration(per_step * static_cast<double>(report.steps - report.step)).c_str());
  return text;
}

Status Progress::OnStart(const StartReport& report) {
  if (!prints_ || quiet_) return {};
  std::printf(
      "%d %s, %s parameters, %s: %s samples and %s held out, %s steps of %s, plugins %s\n",
      report.ranks, report.ranks == 1 ? "rank" : "ranks", Grouped(report.parameters).c_str(),
      report.data.c_str(), Grouped(report.samples).c_str(), Grouped(report.held_out).c_str(),
      Grouped(report.steps).c_str(), Grouped(report.global_batch).c_str(), report.plugins.c_str());
  std::fflush(stdout);
  return {};
}

Status Progress::OnStep(const StepReport& report) {
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
  const std::string line = StepLine(report);
  std::fprintf(stdout, terminal_ ? "\r\x1b[K%s" : "%s\n", line.c_str());
  std::fflush(stdout);
  line_open_ = terminal_;
  // The first and the last line stay on the terminal.
  if (edge && terminal_) {
    std::fputc('\n', stdout);
    line_open_ = false;
  }
  window_steps_ = 0;
  window_samples_ = window_seconds_ = window_communication_ = window_loss_ = 0;
  return {};
}

Status Progress::OnEvaluation(const EvaluationReport& report) {
  if (metrics_ != nullptr) ENGINE_RETURN_IF_ERROR(metrics_->Write(report));
  if (!prints_) return {};
  ClearLine();
  std::printf("step %lld  held-out loss %.4f  accuracy %.2f %%  (%lld targets in %.1f s)\n",
              static_cast<long long>(report.step), report.loss, 100 * report.accuracy,
              static_cast<long long>(report.targets), report.seconds);
  std::fflush(stdout);
  return {};
}

Status Progress::OnCheckpoint(int64_t step, const std::string& path) {
  if (metrics_ != nullptr) ENGINE_RETURN_IF_ERROR(metrics_->WriteCheckpoint(step, path));
  if (!prints_ || quiet_) return {};
  ClearLine();
  std::printf("step %lld  checkpoint %s\n", static_cast<long long>(step), path.c_str());
  std::fflush(stdout);
  return {};
}

Status Progress::OnText(const std::string& prompt, const std::string& text) {
  if (!prints_) return {};
  ClearLine();
  std::printf("--- generated text\n%s%s\n---\n", prompt.c_str(), text.c_str());
  std::fflush(stdout);
  return {};
}

void Progress::ClearLine() {
  if (!line_open_) return;
  std::fputs("\r\x1b[K", stdout);
  std::fflush(stdout);
  line_open_ = false;
}

}  // namespace engine
