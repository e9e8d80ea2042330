#include "bench/cluster/decision.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <utility>

#include "app/plugins/option_value.h"
#include "app/plugins/words.h"

namespace engine::bench {
namespace {

// Over all rounds; infinite for one that was not timed.
double MedianOf(const Turns& turns) {
  std::vector<double> all;
  for (const auto& turn : turns) all.insert(all.end(), turn.begin(), turn.end());
  return all.empty() ? std::numeric_limits<double>::infinity() : Median(std::move(all));
}

std::vector<Turns> TurnsOf(const SweepRow& row) {
  std::vector<Turns> turns;
  for (const Timing& timing : row.timings[kInPlace]) turns.push_back(timing.turns_us);
  return turns;
}

// "all_reduce", as flags and tables write it.
std::string OperationOf(TransferKind kind) {
  std::string name = Name(kind);
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

bool Contains(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

void AddBlocks(const plugin::PluginChoice& choice, std::map<std::string, std::string>* blocks) {
  const std::vector<const OptionSpec*> specs = plugins::OptionsOf(choice.entry.options, "");
  std::string lines;
  for (size_t i = 0; i < specs.size(); ++i) {
    const plugin::OwnedOption& option = choice.options[i];
    const std::string text = plugins::ToText(option);
    const bool is_of_host = option.name == "interface" || option.name == "hostname";
    if (is_of_host || text == plugins::ToText(plugins::DefaultOf(*specs[i]))) continue;
    lines += "  " + option.name + ": " + text + "\n";
  }
  if (!lines.empty()) (*blocks)[choice.entry.name] = lines;
  for (const plugin::PluginChoice& inner : choice.inner) AddBlocks(inner, blocks);
}

}  // namespace

std::optional<Winner> WinnerOf(const std::vector<Turns>& contenders, uint64_t seed) {
  // Medians choose, for they are what a user sees; rounds say how sure that is.
  std::vector<std::pair<double, size_t>> medians;
  for (size_t i = 0; i < contenders.size(); ++i) {
    const double median = MedianOf(contenders[i]);
    if (std::isfinite(median)) medians.emplace_back(median, i);
  }
  if (medians.empty()) return std::nullopt;
  std::sort(medians.begin(), medians.end());
  Winner winner{.contender = medians[0].second, .ratio = {}};
  if (medians.size() == 1) return winner;
  winner.next = medians[1].second;
  winner.ratio = Compare(contenders[winner.next], contenders[winner.contender], seed);
  return winner;
}

std::optional<Winner> WinnerOf(const SweepRow& row, uint64_t seed) {
  return WinnerOf(TurnsOf(row), seed);
}

std::string WinnerText(const std::optional<Winner>& winner, const std::vector<std::string>& names) {
  if (!winner) return "-";
  const std::string& name = names[winner->contender];
  if (!winner->ratio) return name;
  if (!winner->sure()) return "~ " + name + ", " + names[winner->next];
  return fmt::format("{} {:.2f}x", name, winner->ratio->estimate);
}

std::vector<Turns> OverSizes(const SweepResult& result) {
  std::vector<Turns> means;
  for (size_t i = 0; !result.rows.empty() && i < result.rows[0].timings[kInPlace].size(); ++i) {
    size_t rounds = std::numeric_limits<size_t>::max();
    for (const SweepRow& row : result.rows) {
      rounds = std::min(rounds, row.timings[kInPlace][i].turns_us.size());
    }
    Turns& turns = means.emplace_back();
    // Logarithms: each size counts as much as any other, however long it takes.
    for (size_t round = 0; round < rounds; ++round) {
      double sum = 0;
      for (const SweepRow& row : result.rows) {
        sum += std::log(Median(row.timings[kInPlace][i].turns_us[round]));
      }
      turns.push_back({std::exp(sum / static_cast<double>(result.rows.size()))});
    }
  }
  return means;
}

std::vector<std::string> BySizeOptions(const std::vector<ClusterSweep>& sweeps,
                                       const std::vector<std::string>& names) {
  constexpr const char* kPlaces[] = {"default", "second", "third", "fourth"};
  std::vector<std::string> rows, used;
  for (const auto& [request, result] : sweeps) {
    if (request.dtype != sweeps[0].request.dtype) continue;
    const auto add = [&, &sweep = request](size_t contender, const std::string& size) {
      const std::string& name = sweep.contenders[contender].label;
      rows.push_back(OperationOf(sweep.kind) + " " + size + " " + name);
      if (!Contains(used, name)) used.push_back(name);
    };
    std::optional<size_t> before;
    int64_t last_bytes = 0;
    for (const SweepRow& row : result.rows) {
      std::vector<Turns> turns = TurnsOf(row);
      for (size_t i = 0; i < turns.size(); ++i) {
        if (!Contains(names, request.contenders[i].label)) turns[i].clear();
      }
      const std::optional<Winner> winner = WinnerOf(turns, request.seed);
      if (!winner) continue;
      // A small lead here and there must not split the table: who was in use stays so.
      if (before && before != winner->contender &&
          (turns[*before].empty() || Judge(Compare(turns[*before], turns[winner->contender],
                                                   request.seed)) == Conclusion::kFaster)) {
        add(*before, std::to_string(last_bytes));
        before = winner->contender;
      }
      if (!before) before = winner->contender;
      last_bytes = row.bytes;
    }
    if (before) add(*before, "any");
  }
  if (used.size() < 2 || used.size() > std::size(kPlaces)) return {};
  std::vector<std::string> options = {"by_size.table=" + plugins::Join(rows, "; ")};
  for (size_t i = 0; i < used.size(); ++i) {
    options.push_back(std::string("by_size.") + kPlaces[i] + "=" + used[i]);
  }
  return options;
}

std::string Fragment(const std::vector<plugin::PluginChoice>& plugins) {
  std::string text;
  std::map<std::string, std::string> blocks;
  for (const plugin::PluginChoice& plugin : plugins) {
    text += (text.empty() ? "plugins: [\"" : ", \"") + plugin.entry.name + "\"";
    AddBlocks(plugin, &blocks);
  }
  text += "]\n";
  for (const auto& [plugin, lines] : blocks) text += plugin + " {\n" + lines + "}\n";
  return text;
}

}  // namespace engine::bench
