// The forms that programs read.

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "app/plugins/option_value.h"
#include "bench/collectives/format.h"
#include "bench/report/json_parts.h"

namespace engine::bench {
namespace {

using Json = nlohmann::ordered_json;

Json ToJson(const Contender& contender) {
  Json options = Json::object();
  for (const plugin::OwnedOption& option : contender.choice.options) {
    // Numbers and lists are written as in JSON.
    options[option.name] =
        option.string.empty() ? Json::parse(plugins::ToText(option)) : Json(option.string);
  }
  return {{"name", contender.choice.entry.name},
          {"version", contender.choice.entry.version},
          {"path", contender.choice.entry.path},
          {"options", options}};
}

Json ToJson(const Timing& timing) {
  Json json = {{"wrong", timing.wrong < 0 ? Json() : Json(timing.wrong)}};
  if (!timing.first_wrong.empty()) json["first_wrong"] = timing.first_wrong;
  json["iterations"] = timing.iterations;
  if (timing.iterations == 0) return json;
  json["time_us"] = SummaryJson(timing.us);
  json["algbw"] = timing.algbw;
  json["busbw"] = timing.busbw;
  return json;
}

}  // namespace

std::string SweepCsv(const SweepRequest& request, const SweepConditions& conditions,
                     const SweepResult& result) {
  std::string text =
      "side,communicator,kind,ranks,bytes,count,placement,iterations,p50_us,p99_us,mean_us,algbw_"
      "gb_s,busbw_gb_s,wrong\n";
  for (const SweepRow& row : result.rows) {
    for (const Placement placement : {kOutOfPlace, kInPlace}) {
      for (size_t i = 0; i < row.timings[placement].size(); ++i) {
        const Timing& timing = row.timings[placement][i];
        const Contender& contender = request.contenders[i];
        // Empty: nothing was moved, so nothing could be checked.
        text += fmt::format(
            "{},{},{},{},{},{},{},{},{:.3f},{:.3f},{:.3f},{:.6g},{:.6g},{}\n", contender.label,
            contender.choice.entry.name, Name(request.kind), conditions.ranks, row.bytes, row.count,
            Name(placement), timing.iterations, timing.us.median, timing.us.p99, timing.us.mean,
            timing.algbw, timing.busbw, timing.wrong < 0 ? "" : std::to_string(timing.wrong));
      }
    }
  }
  return text;
}

std::string SweepJson(const SweepRequest& request, const SweepConditions& conditions,
                      const SweepResult& result) {
  Json json = {{"kind", Name(request.kind)}, {"dtype", Name(request.dtype)},
               {"ranks", conditions.ranks},  {"ranks_from", conditions.source},
               {"seed", request.seed},       {"machine", MachineJson(conditions.machine)}};
  Json contenders = Json::object();
  for (const Contender& contender : request.contenders) {
    contenders[contender.label] = ToJson(contender);
  }
  json["contenders"] = contenders;
  json["wrong"] = result.wrong;
  json["rows"] = Json::array();
  for (const SweepRow& row : result.rows) {
    Json line = {{"bytes", row.bytes}, {"count", row.count}};
    for (const Placement placement : {kOutOfPlace, kInPlace}) {
      Json& of_placement = line[placement == kInPlace ? "in_place" : "out_of_place"];
      for (size_t i = 0; i < row.timings[placement].size(); ++i) {
        of_placement[request.contenders[i].label] = ToJson(row.timings[placement][i]);
      }
      if (row.ratio[placement]) of_placement["ratio"] = RatioJson(*row.ratio[placement]);
    }
    json["rows"].push_back(std::move(line));
  }
  return json.dump(2) + "\n";
}

}  // namespace engine::bench
