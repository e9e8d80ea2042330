// Rows of numbers, of whatever kind of file.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
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

// Looks through the whole file. Categorical are columns that have something else than numbers, and
// those of the list `categorical` (FindColumns in columns.h). With `like`, the data to train on,
// columns are its columns: of the same names, in any order, or of the same number where there is no
// header; those that are only here do not count. kMissingInput; kBadData with file, line and
// column.
Result<std::unique_ptr<Source>> OpenCsv(const std::string& path, const CsvFormat& format,
                                        const std::string& categorical, const Source* like);

// Columns are the numbers of a row of `x`, then those of `y` and `w`, which may be empty paths; a
// .npz without the name of an array means its "x", and its "y" where `y` is empty. *extents are
// those of a row of x. kMissingInput, kBadData.
struct NpyPaths {
  std::string x, y, w;
};
struct NpySource {
  std::unique_ptr<Source> source;
  std::vector<int64_t> extents;
  int64_t x_columns = 0, y_columns = 0, w_columns = 0;
};
Result<NpySource> OpenNpyTable(NpyPaths paths);

}  // namespace engine::table
