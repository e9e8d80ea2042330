#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tools/simulate/study.h"

namespace engine::simulate {
namespace {

template <typename... Values>
void Append(std::string* text, const char* format, Values... values) {
  char line[512];
  std::snprintf(line, sizeof(line), format, values...);
  *text += line;
}

const char* NameOf(Pattern pattern) {
  return pattern == Pattern::kRing ? "ring" : "exchange";
}

void AppendNetwork(const NetworkModel& network, std::string* text) {
  Append(text, "link      %.6g Mbit/s each way, of which %.3f payload; %s\n",
         1e-6 * network.bits_per_second, network.goodput, NameOf(network.pattern));
  Append(
      text,
      "          latency %.1f us, message %.1f us, ticket %.1f us, %d in flight, unfairness %.2f",
      1e-3 * static_cast<double>(network.latency_ns),
      1e-3 * static_cast<double>(network.message_ns), 1e-3 * static_cast<double>(network.ticket_ns),
      network.max_in_flight, network.unfairness);
  if (network.servers > 0) {
    Append(text, "; %d servers of their own, each with such a link", network.servers);
  }
  if (network.burst_bytes > 0) {
    Append(text, ", burst %lld bytes", static_cast<long long>(network.burst_bytes));
  }
  if (network.copy_bytes_per_second > 0) {
    Append(text, ", copies at %.6g MB/s", 1e-6 * network.copy_bytes_per_second);
  }
  *text += "\n";
}

void AppendRow(const Prediction& row, std::string* text) {
  Append(text, "%5d %9.2f %9.2f %8.2f %8.2f %9.2f %6.2f %9.2f %9.2f %9.2f %8.1f %8.1f\n", row.ranks,
         1e3 * row.step, 1e3 * row.exposed, 1e3 * row.forward, 1e3 * row.backward,
         1e3 * row.communication, row.ratio(), 1e3 * row.no_overlap(), 1e3 * row.backward_overlap(),
         1e3 * row.full_overlap(), 100 * row.schedule_efficiency(), 100 * row.scaling_efficiency);
}

void AppendRankings(const std::vector<SchedulerStudy>& studies, const StudyOptions& options,
                    std::string* text) {
  *text += "\nfastest first\n";
  for (int32_t ranks : options.ranks) {
    Append(text, "%5d ", ranks);
    for (const std::string& name : Ranking(studies, ranks)) *text += " " + name;
    *text += "\n";
  }
}

nlohmann::ordered_json RowJson(const Prediction& row) {
  return {{"ranks", row.ranks},
          {"samples_per_rank", row.samples},
          {"step_seconds", row.step},
          {"exposed_seconds", row.exposed},
          {"forward_seconds", row.forward},
          {"backward_seconds", row.backward},
          {"communication_seconds", row.communication},
          {"r", row.ratio()},
          {"no_overlap_seconds", row.no_overlap()},
          {"backward_overlap_seconds", row.backward_overlap()},
          {"full_overlap_seconds", row.full_overlap()},
          {"schedule_efficiency", row.schedule_efficiency()},
          {"scaling_efficiency", row.scaling_efficiency}};
}

}  // namespace

std::string FormatStudy(const std::vector<SchedulerStudy>& studies, const StudyOptions& options) {
  std::string text;
  AppendNetwork(options.network, &text);
  for (const SchedulerStudy& study : studies) {
    Append(&text, "\n%s\n", study.scheduler.c_str());
    for (const std::string& warning : study.warnings) text += "  " + warning + "\n";
    text +=
        "ranks   step ms   exposed     F ms     B ms      C ms      r    F+B+C F+max(B,C) "
        "max(F+B,C) sched %  scale %\n";
    AppendRow(study.alone, &text);
    for (const Prediction& row : study.predictions) AppendRow(row, &text);
  }
  if (studies.size() > 1) AppendRankings(studies, options, &text);
  return text;
}

std::string FormatStudyJson(const std::vector<SchedulerStudy>& studies,
                            const StudyOptions& options) {
  const NetworkModel& network = options.network;
  nlohmann::ordered_json json;
  json["network"] = {{"pattern", NameOf(network.pattern)},
                     {"bits_per_second", network.bits_per_second},
                     {"goodput", network.goodput},
                     {"latency_ns", network.latency_ns},
                     {"message_ns", network.message_ns},
                     {"ticket_ns", network.ticket_ns},
                     {"in_flight", network.max_in_flight},
                     {"servers", network.servers},
                     {"unfairness", network.unfairness},
                     {"burst_bytes", network.burst_bytes},
                     {"copy_bytes_per_second", network.copy_bytes_per_second}};
  json["schedulers"] = nlohmann::ordered_json::array();
  for (const SchedulerStudy& study : studies) {
    nlohmann::ordered_json rows = nlohmann::ordered_json::array({RowJson(study.alone)});
    for (const Prediction& row : study.predictions) rows.push_back(RowJson(row));
    json["schedulers"].push_back(
        {{"name", study.scheduler}, {"warnings", study.warnings}, {"predictions", rows}});
  }
  json["fastest_first"] = nlohmann::ordered_json::array();
  for (int32_t ranks : options.ranks) {
    json["fastest_first"].push_back({{"ranks", ranks}, {"schedulers", Ranking(studies, ranks)}});
  }
  return json.dump(2) + "\n";
}

}  // namespace engine::simulate
