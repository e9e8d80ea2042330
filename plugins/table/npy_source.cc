// Arrays of NumPy as rows of numbers.
#include <array>
#include <cinttypes>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "data_kit/elements.h"
#include "data_kit/npy.h"
#include "source.h"

namespace engine::table {
namespace {

using data_kit::NumberArray;

// x, y and w beside each other: column c of the source is in the first array whose end is above c.
class ArraySource final : public Source {
 public:
  explicit ArraySource(std::vector<NumberArray> arrays) : arrays_(std::move(arrays)) {
    for (const NumberArray& array : arrays_) {
      columns_.resize(columns_.size() + static_cast<size_t>(array.row_count()),
                      Column{.name = {}, .is_whole = array.type.is_integer(), .categories = {}});
      ends_.push_back(columns_.size());
    }
  }

  int64_t rows() const override { return arrays_.front().rows(); }
  const std::vector<Column>& columns() const override { return columns_; }

  // Neighbours of one array are read together.
  Status Read(int64_t row, std::span<const size_t> columns, double* out) const override {
    for (size_t i = 0; i < columns.size();) {
      const auto [array, first] = Find(columns[i]);
      const size_t left = ends_[array] - columns[i];
      size_t count = 1;
      while (i + count < columns.size() && count < left &&
             columns[i + count] == columns[i] + count) {
        ++count;
      }
      arrays_[array].Read(row, static_cast<int64_t>(first), static_cast<int64_t>(count), out + i);
      i += count;
    }
    return {};
  }

  Status Bad(int64_t row, size_t column, const std::string& what) const override {
    const auto [array, first] = Find(column);
    return Status::Error(StatusCode::kBadData, "%s: row %" PRId64 ", column %zu: %s",
                         arrays_[array].name.c_str(), row, first, what.c_str());
  }

  void AddTo(kit::Digest& digest) const override {
    for (const NumberArray& array : arrays_) {
      digest.AddParts(array.elements.data(), array.elements.size());
    }
  }

 private:
  // The array that a column lies in, and its number there.
  std::pair<size_t, size_t> Find(size_t column) const {
    size_t array = 0;
    while (column >= ends_[array]) ++array;
    return {array, array == 0 ? column : column - ends_[array - 1]};
  }

  // Constant.
  const std::vector<NumberArray> arrays_;
  std::vector<Column> columns_;
  std::vector<size_t> ends_;  // of the columns of each array
};

}  // namespace

Result<std::unique_ptr<Source>> OpenNpyTable(NpyPaths paths, NpyLayout* layout) {
  if (paths.y.empty() && paths.x.ends_with(".npz")) paths.y = paths.x;
  std::vector<NumberArray> arrays;
  const std::array<std::pair<std::string, const char*>, 3> parts{
      {{paths.x, "x"}, {paths.y, "y"}, {paths.w, "w"}}};
  size_t* const counts[] = {&layout->x, &layout->y, &layout->w};
  for (size_t i = 0; i < parts.size(); ++i) {
    const auto& [path, name] = parts[i];
    if (path.empty()) continue;  // only x must be
    ENGINE_ASSIGN_OR_RETURN(NumberArray array, data_kit::OpenNpy(path, name));
    *counts[i] = static_cast<size_t>(array.row_count());
    if (!arrays.empty() && array.rows() != arrays.front().rows()) {
      return Status::Error(StatusCode::kBadData, "%s: %" PRId64 " rows for the %" PRId64 " of %s",
                           array.name.c_str(), array.rows(), arrays.front().rows(),
                           arrays.front().name.c_str());
    }
    arrays.push_back(std::move(array));
  }
  if (layout->w > 1) {
    return Status::Error(StatusCode::kBadData, "%s: %zu numbers in a row; a weight is one",
                         arrays.back().name.c_str(), layout->w);
  }
  layout->extents.assign(arrays.front().shape.begin() + 1, arrays.front().shape.end());
  return std::unique_ptr<Source>(std::make_unique<ArraySource>(std::move(arrays)));
}

}  // namespace engine::table
