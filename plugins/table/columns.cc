#include <algorithm>
#include <charconv>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "data_kit/csv.h"
#include "source.h"

namespace engine::table {
namespace {

// "a, b, c and 5 more"
std::string Names(const std::vector<Column>& columns) {
  constexpr size_t kMost = 12;
  std::string text = std::to_string(columns.size()) + " columns";
  for (size_t i = 0; i < std::min(columns.size(), kMost); ++i) {
    if (columns[i].name.empty()) return text;
    text += (i == 0 ? ": " : ", ") + columns[i].name;
  }
  return columns.size() > kMost ? text + ", ..." : text;
}

// A name counts before a number, as columns may be called "2019".
Result<size_t> FindColumn(const char* key, const std::string& word,
                          const std::vector<Column>& columns) {
  const auto named = std::ranges::find(columns, word, &Column::name);
  if (named != columns.end()) return static_cast<size_t>(named - columns.begin());
  const auto count = static_cast<int64_t>(columns.size());
  int64_t number = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), number);
  if (error == std::errc() && end == word.data() + word.size() && number >= -count &&
      number < count) {
    return static_cast<size_t>(number < 0 ? number + count : number);
  }
  return Status::Error(StatusCode::kConfig, "data.table.%s: there is no column '%s'; there are %s",
                       key, word.c_str(), Names(columns).c_str());
}

}  // namespace

Result<std::vector<size_t>> FindColumns(const char* key, std::string_view list,
                                        const std::vector<Column>& columns) {
  std::vector<size_t> found;
  for (const std::string& word : data_kit::SplitWords(list)) {
    ENGINE_ASSIGN_OR_RETURN(const size_t column, FindColumn(key, word, columns));
    found.push_back(column);
  }
  return found;
}

Result<Choice> ChooseColumns(const ChoiceOptions& options, const std::vector<Column>& columns) {
  Choice choice;
  ENGINE_ASSIGN_OR_RETURN(choice.targets, FindColumns("target", options.target, columns));
  if (options.target.empty()) choice.targets = {columns.size() - 1};
  ENGINE_ASSIGN_OR_RETURN(const auto weights, FindColumns("weight", options.weight, columns));
  if (weights.size() > 1) {
    return Status::Error(StatusCode::kConfig, "data.table.weight: one column is the weight");
  }
  if (!weights.empty()) choice.weight = weights.front();
  ENGINE_ASSIGN_OR_RETURN(auto others, FindColumns("ignore", options.ignore, columns));
  others.insert(others.end(), choice.targets.begin(), choice.targets.end());
  others.insert(others.end(), weights.begin(), weights.end());
  std::set<size_t> taken(others.begin(), others.end());
  ENGINE_ASSIGN_OR_RETURN(choice.features, FindColumns("features", options.features, columns));
  if (options.features.empty()) {
    for (size_t i = 0; i < columns.size(); ++i) {
      if (!taken.contains(i)) choice.features.push_back(i);
    }
  }
  // Each column once: a set of them is as large as the list.
  for (const size_t feature : choice.features) others.push_back(feature);
  taken.insert(choice.features.begin(), choice.features.end());
  if (choice.features.empty() || taken.size() != others.size()) {
    return Status::Error(
        StatusCode::kConfig, "data.table: %s; see features, target, weight, ignore",
        choice.features.empty() ? "no column is left to be a feature" : "a column is named twice");
  }
  return choice;
}

}  // namespace engine::table
