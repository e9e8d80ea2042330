#include <fmt/format.h>

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tools/simulate/study.h"

namespace engine::simulate {
namespace {

constexpr double kSteady = 1.1;

const char* NameOf(Pattern pattern) {
  return pattern == Pattern::kRing ? "ring" : "exchange";
}

std::string NetworkText(const NetworkModel& network) {
  const auto us = [](int64_t ns) { return 1e-3 * static_cast<double>(ns); };
  std::string text = fmt::format(
      "link      {:.6g} Mbit/s each way, of which {:.3f} payload; {}\n"
      "          latency {:.1f} us, message {:.1f} us, ticket {:.1f} us, {} in flight, unfairness "
      "{:.2f}",
      1e-6 * network.bits_per_second, network.goodput, NameOf(network.pattern),
      us(network.latency_ns), us(network.message_ns), us(network.ticket_ns), network.max_in_flight,
      network.unfairness);
  if (network.servers > 0) {
    text += fmt::format("; {} servers of their own, each with such a link", network.servers);
  }
  if (network.burst_bytes > 0) text += fmt::format(", burst {} bytes", network.burst_bytes);
  if (network.copy_bytes_per_second > 0) {
    text += fmt::format(", copies at {:.6g} MB/s", 1e-6 * network.copy_bytes_per_second);
  }
  if (network.ranks_per_host > 1) {
    text += fmt::format(
        "\n          {} ranks of each host share the link; inside {:.6g} Mbit/s of payload for "
        "each, "
        "latency {:.1f} us",
        network.ranks_per_host, 1e-6 * network.inner_bits_per_second, us(network.inner_latency_ns));
  }
  return text + "\n";
}

std::string RowText(const Prediction& row) {
  return fmt::format(
      "{:5} {:9.2f} {:9.2f} {:8.2f} {:8.2f} {:9.2f} {:6.2f} {:9.2f} {:9.2f} {:9.2f} {:8.1f} "
      "{:8.1f}\n",
      row.ranks, 1e3 * row.step, 1e3 * row.exposed, 1e3 * row.forward, 1e3 * row.backward,
      1e3 * row.communication, row.ratio(), 1e3 * row.no_overlap(), 1e3 * row.backward_overlap(),
      1e3 * row.full_overlap(), 100 * row.schedule_efficiency(), 100 * row.scaling_efficiency);
}

nlohmann::ordered_json RowJson(const Prediction& row) {
  nlohmann::ordered_json compute;
  if (row.compute) {
    compute = {{"least", row.compute->least},
               {"median", row.compute->median},
               {"most", row.compute->most}};
  }
  return {{"ranks", row.ranks},
          {"measured_step_seconds", compute},
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

// What the rows rest on: each batch of a rank once, and what speaks against them.
std::string ComputeText(const SchedulerStudy& study) {
  std::vector<Prediction> rows = study.predictions;
  rows.insert(rows.begin(), study.alone);
  std::map<int64_t, ComputeSpread> by_samples;
  std::string text;
  bool unsteady = false;
  for (const Prediction& row : rows) {
    if (!row.compute || !by_samples.emplace(row.samples, *row.compute).second) continue;
    text += fmt::format("{:10}{} samples {:.2f} ms ({:.2f} to {:.2f}) in three measurements\n",
                        text.empty() ? "compute" : "", row.samples, 1e3 * row.compute->median,
                        1e3 * row.compute->least, 1e3 * row.compute->most);
    unsteady |= row.compute->most > kSteady * row.compute->least;
  }
  if (unsteady) {
    text +=
        "warning   measurements differ by more than 10 %: take less load or more "
        "--measured-steps\n";
  }
  if (rows.back().samples != rows.front().samples) {
    text += "batch     train.global_batch is divided among the ranks (strong scaling)\n";
  }
  for (const Prediction& row : rows) {
    if (row.scaling_efficiency <= kSteady) continue;
    text += fmt::format(
        "warning   {} ranks: scale above 100 %, because {} samples take less than their share of "
        "the "
        "time of {}: noise, or a working set that fits into a cache\n",
        row.ranks, row.samples, rows.front().samples);
  }
  return text;
}

}  // namespace

std::string FormatStudy(const std::vector<SchedulerStudy>& studies, const StudyOptions& options) {
  std::string text = NetworkText(options.network);
  if (!studies.empty()) text += ComputeText(studies.front());
  for (const SchedulerStudy& study : studies) {
    text += "\n" + study.scheduler + "\n";
    for (const std::string& warning : study.warnings) text += "  " + warning + "\n";
    text +=
        "ranks   step ms   exposed     F ms     B ms      C ms      r    F+B+C F+max(B,C) "
        "max(F+B,C) sched %  scale %\n";
    text += RowText(study.alone);
    for (const Prediction& row : study.predictions) text += RowText(row);
  }
  if (studies.size() == 1) return text;
  text += "\nfastest first\n";
  for (const int32_t ranks : options.ranks) {
    text += fmt::format("{:5}  {}\n", ranks, fmt::join(Ranking(studies, ranks), " "));
  }
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
                     {"ranks_per_host", network.ranks_per_host},
                     {"inner_bits_per_second", network.inner_bits_per_second},
                     {"inner_latency_ns", network.inner_latency_ns},
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
