#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tools/trace/summary.h"

namespace engine::trace {
namespace {

using Json = nlohmann::ordered_json;

Json Optional(const std::optional<double>& value) {
  return value ? Json(*value) : Json(nullptr);
}

Json ToJson(const StepFigures& figures) {
  return {{"step_ms", figures.step / 1e6},
          {"forward_ms", figures.forward / 1e6},
          {"backward_ms", figures.backward / 1e6},
          {"hooks_ms", figures.hooks / 1e6},
          {"update_ms", figures.update / 1e6},
          {"other_ms", figures.other / 1e6},
          {"exposed_ms", figures.exposed / 1e6},
          {"silent_ms", figures.silent / 1e6},
          {"communication_ms", figures.communication / 1e6},
          {"overlap_efficiency", Optional(figures.overlap)},
          {"algbw_bytes_per_second", Optional(figures.algorithm_bandwidth)},
          {"busbw_bytes_per_second", Optional(figures.bus_bandwidth)}};
}

Json ToJson(const Inversions& inversions, const std::vector<uint64_t>& by_rank) {
  return {{"overtaken", inversions.overtaken},
          {"overtaken_by_rank", by_rank},
          {"overtaken_bytes", inversions.overtaken_bytes},
          {"overtaking_bytes", inversions.bytes},
          {"worst_ms", static_cast<double>(inversions.longest_ns) / 1e6},
          {"worst_bytes", inversions.longest_bytes},
          {"rank", inversions.rank},
          {"step", inversions.step},
          {"transfer", inversions.name}};
}

Json ToJson(const LongWait& wait) {
  return {{"step", wait.step},
          {"rank", wait.rank},
          {"wait_ms", static_cast<double>(wait.wait_ns) / 1e6},
          {"task", wait.task},
          {"forward", wait.forward},
          {"transfer", wait.transfer},
          {"cause", Name(wait.cause)},
          {"cause_rank", wait.cause_rank},
          {"cause_ms", static_cast<double>(wait.cause_ns) / 1e6},
          {"text", wait.cause_text}};
}

}  // namespace

std::string SummaryJson(const TraceSummary& summary) {
  Json ranks = Json::array(), waits = Json::array(), causes = Json::object();
  for (const auto& [rank, figures] : summary.ranks) {
    Json entry = {{"rank", rank}};
    entry.update(ToJson(figures));
    ranks.push_back(std::move(entry));
  }
  for (const LongWait& wait : summary.longest_waits) waits.push_back(ToJson(wait));
  for (int32_t kind = 0; kind <= static_cast<int32_t>(CauseKind::kUnknown); ++kind) {
    causes[Name(static_cast<CauseKind>(kind))] = summary.waits_by_cause_ns[kind] / 1e6;
  }
  const Json root = {
      {"world_size", summary.world_size},
      {"metadata", summary.metadata},
      {"steps", summary.steps},
      {"left_out", summary.left_out},
      {"dropped_spans", summary.dropped},
      {"clock_error_ms", static_cast<double>(summary.clock_error_ns) / 1e6},
      {"step_p10_ms", summary.step_p10_ns / 1e6},
      {"step_p90_ms", summary.step_p90_ns / 1e6},
      {"all", ToJson(summary.all)},
      {"ranks", std::move(ranks)},
      {"link_bytes_per_step", summary.link_bytes},
      {"goodput_bytes_per_second", summary.goodput},
      {"goodput_given", summary.goodput_given},
      {"compute_ms", summary.compute_ns / 1e6},
      {"ideal_communication_ms", summary.ideal_ns / 1e6},
      {"schedule_efficiency", summary.efficiency},
      {"inversions_at_submission", ToJson(summary.submission, summary.submission_by_rank)},
      {"inversions_on_the_wire",
       summary.first_byte_known ? ToJson(summary.first_byte, summary.first_byte_by_rank) : Json()},
      {"waits_ms", summary.waits_ns / 1e6},
      {"waits_by_cause_ms", std::move(causes)},
      {"longest_waits", std::move(waits)}};
  return root.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace engine::trace
