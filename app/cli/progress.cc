#include "app/cli/progress.h"

#include <fmt/core.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <utility>

#include "app/plugins/roles.h"
#include "app/run/evaluation.h"

namespace engine::cli {
namespace {

constexpr auto kLiveInterval = std::chrono::milliseconds(200);
constexpr auto kPlainInterval = std::chrono::seconds(10);

// 811008 as "811,008".
std::string Grouped(int64_t number) {
  std::string text = std::to_string(number);
  for (size_t i = text.size(); i > 3; i -= 3) text.insert(i - 3, 1, ',');
  return text;
}

// Asked each time, as windows change. A character less than the terminal has, which would wrap after
// the last one.
size_t LineWidth() {
  constexpr size_t kUsual = 80;
  winsize size{};
  const bool known = ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 1;
  return (known ? size.ws_col : kUsual) - 1;
}

template <typename... Values>
void Print(fmt::format_string<Values...> format, Values&&... values) {
  fmt::print(format, std::forward<Values>(values)...);
  std::fflush(stdout);
}

}  // namespace

Progress::Style Progress::StyleOf(const std::string& wanted, bool terminal,
                                  const std::map<std::string, std::string>& variables) {
  if (wanted == "none") return Style::kNone;
  if (wanted == "live") return Style::kLive;
  const auto value = [&](const char* name) {
    const auto found = variables.find(name);
    return found == variables.end() ? std::string() : found->second;
  };
  const bool moves = terminal && value("TERM") != "dumb" && value("NO_COLOR").empty();
  return wanted == "plain" || !moves ? Style::kPlain : Style::kLive;
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

template <typename Write>
Status Progress::Tell(Write write) {
  for (const auto& sink : sinks_) {
    if (prints_) ENGINE_RETURN_IF_ERROR(write(*sink));
  }
  return {};
}

Status Progress::OnStep(const train::StepReport& report) {
  step_ = report.step;
  ENGINE_RETURN_IF_ERROR(Tell([&](run::MetricsSink& sink) { return sink.Write(report); }));
  if (!prints_ || quiet_ || style_ == Style::kNone) return {};
  const auto now = run::StepLine::Clock::now();
  line_.Add(report, now);
  const bool live = style_ == Style::kLive;
  const run::StepLine::Clock::duration interval =
      live ? run::StepLine::Clock::duration(kLiveInterval) : kPlainInterval;
  const bool edge = report.step == 1 || report.step == report.steps;
  if (!edge && now - last_print_ < interval) return {};
  last_print_ = now;
  // The first and the last line stay on the terminal.
  line_open_ = live && !edge;
  Print("{}{}{}", live ? "\r\x1b[K" : "", live ? line_.Text(LineWidth()) : line_.Text(),
        line_open_ ? "" : "\n");
  return {};
}

Status Progress::OnEvaluation(const train::EvaluationReport& report) {
  ENGINE_RETURN_IF_ERROR(Tell([&](run::MetricsSink& sink) { return sink.Write(report); }));
  if (!prints_) return {};
  ClearLine();
  Print("step {}  held-out {}  ({} targets in {:.1f} s)\n", report.step, run::Describe(report),
        report.targets, report.seconds);
  return {};
}

Status Progress::OnCheckpoint(int64_t step, const std::string& path) {
  ENGINE_RETURN_IF_ERROR(
      Tell([&](run::MetricsSink& sink) { return sink.WriteCheckpoint(step, path); }));
  if (!prints_ || quiet_) return {};
  ClearLine();
  Print("step {}  checkpoint {}\n", step, path);
  return {};
}

// A plugin cannot do anything about a full disk; the next step fails of it.
void Progress::OnPluginMetric(int32_t rank, std::string_view name, double value) {
  (void)Tell([&](run::MetricsSink& sink) {
    return sink.WritePluginMetric(step_.load(), rank, name, value);
  });
}

Status Progress::OnText(const std::string& text) {
  if (!prints_) return {};
  ClearLine();
  Print("--- generated text\n{}\n---\n", text);
  return {};
}

void Progress::ClearLine() {
  if (!line_open_) return;
  Print("\r\x1b[K");
  line_open_ = false;
}

}  // namespace engine::cli
