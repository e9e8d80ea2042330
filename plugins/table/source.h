// Rows of numbers, of whatever kind of file, and which of their columns are what.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/status.h"
#include "kit/digest.h"

namespace engine::table {

// A column, as the data to train on has it.
struct Column {
  std::string name;      // empty: it has none
  bool is_whole = true;  // whole numbers alone, of type integer where files have types
  std::vector<std::string> categories;  // sorted; not empty: its values are these
};

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
  bool operator==(const ChoiceOptions&) const = default;
};
Result<Choice> ChooseColumns(const ChoiceOptions& options, const std::vector<Column>& columns);

class Source {
 public:
  virtual ~Source() = default;
  virtual int64_t rows() const = 0;
  virtual const std::vector<Column>& columns() const = 0;

  // Writes the numbers of some columns of a row: NaN where one is missing, and of a categorical
  // column the number of the category, -1 if it is none of them or missing. kBadData with the place
  // of what is neither. [any-thread]
  virtual Status Read(int64_t row, std::span<const size_t> columns, double* out) const = 0;

  // An error at a place of the file.
  virtual Status Bad(int64_t row, size_t column, const std::string& what) const = 0;

  virtual void AddTo(kit::Digest& digest) const = 0;
};

struct CsvFormat {
  char delimiter = ',';
  bool header = true;
};

// Looks through the whole file. Categorical are columns that have no number, and those of the list
// `categorical` (FindColumns): one word among numbers is more often damage or a sign
// for what is missing. With `like`, the data to train on,
// columns are its columns: of the same names, in any order, or of the same number where there is no
// header; those that are only here do not count, and those that are not `used` may be missing. kMissingInput; kBadData with file, line and
// column.
Result<std::unique_ptr<Source>> OpenCsv(const std::string& path, const CsvFormat& format,
                                        const std::string& categorical, const Source* like,
                                        std::span<const size_t> used);

// Columns are the numbers of a row of `x`, then those of `y` and of `w`, at most one, which may be
// empty paths; a .npz without the name of an array means its "x", and its "y" where `y` is empty.
// kMissingInput, kBadData.
struct NpyPaths {
  std::string x, y, w;
};
struct NpyLayout {
  std::vector<int64_t> extents;  // of a row of x
  size_t x = 0, y = 0, w = 0;    // columns
  bool operator==(const NpyLayout&) const = default;
};
Result<std::unique_ptr<Source>> OpenNpyTable(NpyPaths paths, NpyLayout* layout);

}  // namespace engine::table
