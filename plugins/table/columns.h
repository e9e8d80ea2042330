// Which columns of a table are what.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/status.h"
#include "source.h"

namespace engine::table {

// Columns are written as a list of names, or of numbers from 0, or from -1 backwards, as Python
// counts: "age, income", "0, 1, -1". A name counts before a number. kConfig names `key` and the
// columns that there are.
Result<std::vector<size_t>> FindColumns(const char* key, std::string_view list,
                                        const std::vector<Column>& columns);

struct Choice {
  std::vector<size_t> features, targets;
  std::optional<size_t> weight;
};

// As the options say; without `features` all that are nothing else and not in `ignore`, without
// `target` the last column. kConfig when a column is two of them, or none is left.
struct ChoiceOptions {
  std::string features, target, weight, ignore;
};
Result<Choice> ChooseColumns(const ChoiceOptions& options, const std::vector<Column>& columns);

}  // namespace engine::table
