// The forms that programs read. A number that is not finite becomes null.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>

#include "bench/report/facts.h"
#include "bench/report/json_parts.h"
#include "bench/report/train_report.h"

namespace engine::bench {
namespace {

using Json = nlohmann::ordered_json;

template <typename T>
Json OrNull(const std::optional<T>& value) {
  return value ? Json(*value) : Json();
}

Json ToJson(const RunResult& run) {
  return {{"side", Name(run.side)},
          {"block", run.block + 1},
          {"begin_seconds", run.begin_seconds},
          {"wall_seconds", run.wall_seconds},
          {"seed", run.seed},
          {"target_seconds", OrNull(run.target_seconds)},
          {"median_step_seconds", Median(run.step_seconds)},
          {"waited_seconds", run.waited_seconds},
          {"forward_seconds", run.forward_seconds},
          {"backward_seconds", run.backward_seconds},
          {"bytes_per_step", run.bytes_per_step},
          {"sent_packets", run.sent_packets},
          {"dropped_packets", run.dropped_packets},
          {"step_seconds", run.step_seconds},
          {"losses", run.losses}};
}

Json ToJson(const Side& side) {
  return {{"plugins", side.plugins},
          {"overrides", side.overrides},
          {"plugin_folders", side.plugin_folders}};
}

Json RequestJson(const TrainRequest& request) {
  Json json = {{"configuration", request.config_name},
               {"overrides", request.overrides},
               {"a", ToJson(request.a)},
               {"b", ToJson(request.b)},
               {"a_against_itself", request.same},
               {"ranks", request.ranks},
               {"servers", request.servers},
               {"warmup_steps", request.warmup},
               {"steps", request.steps},
               {"blocks", request.blocks},
               {"seed", request.seed},
               {"loss_tolerance", request.loss_tolerance},
               {"target_loss", OrNull(request.target_loss)}};
  json["null"] = request.null_side ? ToJson(*request.null_side) : Json();
  return json;
}

Json ConditionsJson(const TrainResult& result) {
  const Conditions& conditions = result.conditions;
  Json json = {{"compute_seconds", OrNull(conditions.compute_seconds)},
               {"communication_seconds", OrNull(conditions.communication_seconds)},
               {"r", OrNull(conditions.ratio)},
               {"bound_no_overlap_seconds", OrNull(conditions.no_overlap)},
               {"bound_backward_overlap_seconds", OrNull(conditions.backward_overlap)},
               {"bound_full_overlap_seconds", OrNull(conditions.full_overlap)}};
  json["link"] = !result.link
                     ? Json()
                     : Json{{"rate", result.link->rate},
                            {"goodput_bits_per_second", result.link->goodput_bits_per_second},
                            {"congestion_control", result.link->congestion}};
  return json;
}

Json DifferenceJson(const TrainResult& result) {
  if (!result.difference) return {};
  return {{"step", result.difference->step},
          {"run", result.difference->run + 1},
          {"loss", result.difference->loss},
          {"other_run", result.difference->other_run + 1},
          {"other_loss", result.difference->other_loss}};
}

}  // namespace

std::string TrainCsv(const TrainResult& result) {
  std::string text = "run,side,block,step,seconds,loss\n";
  for (size_t i = 0; i < result.runs.size(); ++i) {
    const RunResult& run = result.runs[i];
    // The losses begin with those of the warm-up.
    const size_t warmup = run.losses.size() - std::min(run.losses.size(), run.step_seconds.size());
    for (size_t step = 0; step < run.step_seconds.size(); ++step) {
      text += fmt::format("{},{},{},{},{:.9f},{:.9g}\n", i + 1, Name(run.side), run.block + 1,
                          warmup + step + 1, run.step_seconds[step],
                          warmup + step < run.losses.size() ? run.losses[warmup + step] : NAN);
    }
  }
  return text;
}

std::string TrainJson(const TrainResult& result) {
  Json json = {{"conclusion", result.sentence},
               {"refused", result.refused},
               {"loss_difference", DifferenceJson(result)},
               // Without a conclusion there is nothing to read one from.
               {"ratio", result.refused ? Json() : RatioJson(result.ratio)}};
  for (const SideId side : SidesOf(result)) {
    json["step_seconds"][Name(side)] = SummaryJson(result.steps[static_cast<int>(side)]);
  }
  for (const SideId side : {SideId::kA, SideId::kB}) {
    const Ratio& to = result.target_seconds[static_cast<int>(side)];
    if (!to.by_pair.empty()) {
      json["target_seconds"][Name(side)] = {{"mean", to.estimate}, {"interval", {to.low, to.high}}};
    }
  }
  json["conditions"] = ConditionsJson(result);
  json["request"] = RequestJson(result.request);
  json["machine"] = MachineJson(result.machine);
  json["runs"] = Json::array();
  for (const RunResult& run : result.runs) json["runs"].push_back(ToJson(run));
  json["discarded"] = Json::array();
  for (const RunResult& run : result.discarded) json["discarded"].push_back(ToJson(run));
  return json.dump(2) + "\n";
}

}  // namespace engine::bench
