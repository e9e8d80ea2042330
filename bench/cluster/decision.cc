#include "bench/cluster/decision.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <utility>

#include "app/plugins/words.h"

namespace engine::bench {
namespace {

// Over all rounds; infinite for one that was not timed.
double MedianOf(const Turns& turns) {
  std::vector<double> all;
  for (const auto& turn : turns) all.insert(all.end(), turn.begin(), turn.end());
  return all.empty() ? std::numeric_limits<double>::infinity() : Median(std::move(all));
}

// As a configuration writes the value of an option.
std::string Quoted(const std::string& value) {
  const bool number = value.find_first_not_of("-.0123456789") == std::string::npos;
  return number && !value.empty() ? value : "\"" + value + "\"";
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

std::vector<Entry> EntriesOf(const SweepRequest& request, const SweepResult& result) {
  std::vector<Entry> entries;
  int64_t last_bytes = 0;
  for (const SweepRow& row : result.rows) {
    const std::vector<Turns> turns = TurnsOf(row);
    const std::optional<Winner> winner = WinnerOf(turns, request.seed);
    if (!winner) continue;
    if (entries.empty()) {
      entries.push_back({request.kind, INT64_MAX, winner->contender});
      // A small lead here and there must not split the table: who was in use stays so.
    } else if (const size_t before = entries.back().contender; before != winner->contender) {
      const bool lacks = turns[before].empty();
      if (lacks || Judge(Compare(turns[before], turns[winner->contender], request.seed)) ==
                       Conclusion::kFaster) {
        entries.back().up_to_bytes = last_bytes;
        entries.push_back({request.kind, INT64_MAX, winner->contender});
      }
    }
    last_bytes = row.bytes;
  }
  return entries;
}

std::vector<std::string> BySizeOptions(const std::vector<Entry>& entries,
                                       const std::vector<std::string>& names) {
  constexpr const char* kPlaces[] = {"default", "second", "third", "fourth"};
  std::vector<std::string> rows, used;
  for (const Entry& entry : entries) {
    const std::string& name = names[entry.contender];
    const std::string size =
        entry.up_to_bytes == INT64_MAX ? "any" : std::to_string(entry.up_to_bytes);
    rows.push_back(OperationOf(entry.kind) + " " + size + " " + name);
    if (std::find(used.begin(), used.end(), name) == used.end()) used.push_back(name);
  }
  if (used.size() < 2 || used.size() > std::size(kPlaces)) return {};
  std::vector<std::string> options = {"by_size.table=" + plugins::Join(rows, "; ")};
  for (size_t i = 0; i < used.size(); ++i) {
    options.push_back(std::string("by_size.") + kPlaces[i] + "=" + used[i]);
  }
  return options;
}

std::string Fragment(const std::vector<std::string>& plugins,
                     const std::vector<std::string>& options) {
  std::string text;
  for (const std::string& plugin : plugins) {
    text += (text.empty() ? "plugins: [\"" : ", \"") + plugin + "\"";
  }
  text += "]\n";
  std::map<std::string, std::string> blocks;
  for (const std::string& option : options) {
    const size_t dot = option.find('.'), equals = option.find('=');
    blocks[option.substr(0, dot)] += "  " + option.substr(dot + 1, equals - dot - 1) + ": " +
                                     Quoted(option.substr(equals + 1)) + "\n";
  }
  for (const auto& [plugin, lines] : blocks) text += plugin + " {\n" + lines + "}\n";
  return text;
}

}  // namespace engine::bench
