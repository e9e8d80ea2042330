// CSV files as rows of numbers.
#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "data_kit/csv.h"
#include "source.h"

namespace engine::table {
namespace {

using data_kit::CsvFile;
using data_kit::CsvRecord;

constexpr double kMissing = std::numeric_limits<double>::quiet_NaN();
constexpr size_t kMostCategories = 65536;

// As pandas writes and reads what is not there; more words would take text for missing.
bool IsMissing(std::string_view field) {
  static constexpr std::string_view kWords[] = {"", "NA", "N/A", "NaN", "nan", "null", "NULL"};
  return std::ranges::find(kWords, field) != std::end(kWords);
}

// By value where both are numbers, so that "10" comes behind "9".
bool CategoryLess(const std::string& a, const std::string& b) {
  const auto x = data_kit::ParseNumber(a), y = data_kit::ParseNumber(b);
  if (x && y && *x != *y) return *x < *y;
  return x.has_value() != y.has_value() ? x.has_value() : a < b;
}

class CsvSource final : public Source {
 public:
  CsvSource(CsvFile file, bool header) : file_(std::move(file)), first_(header ? 1 : 0) {}

  int64_t rows() const override { return file_.records() - first_; }
  const std::vector<Column>& columns() const override { return columns_; }

  Status Read(int64_t row, std::span<const size_t> columns, double* out) const override {
    CsvRecord record;
    ENGINE_RETURN_IF_ERROR(Split(row, &record));
    for (const size_t column : columns) {
      const std::string_view field = record.fields()[places_[column]];
      ENGINE_ASSIGN_OR_RETURN(*out++, Number(row, column, field));
    }
    return {};
  }

  Status Bad(int64_t row, size_t column, const std::string& what) const override {
    return file_.BadField(first_ + row, places_[column], columns_[column].name, what);
  }

  void AddTo(kit::Digest& digest) const override {
    digest.Add(file_.bytes().data(), file_.bytes().size());
  }

  // Names from the header, and where columns lie: in order, or, those of `used`, as `like` has them.
  Status ReadHeader(const Source* like, std::span<const size_t> used) {
    CsvRecord record;
    ENGINE_RETURN_IF_ERROR(file_.Split(0, &record));
    fields_ = record.fields().size();
    if (rows() < 1) {
      return Status::Error(StatusCode::kBadData, "%s: a header, and no row behind it",
                           file_.path().c_str());
    }
    std::vector<Column> own(fields_);
    for (size_t i = 0; i < fields_ && first_ == 1; ++i) {
      own[i].name = record.fields()[i];
      if (std::ranges::find(own, own[i].name, &Column::name) - own.begin() < std::ptrdiff_t(i)) {
        return file_.BadField(0, i, own[i].name, "an earlier column has the same name");
      }
    }
    columns_ = like == nullptr ? own : like->columns();
    for (size_t i = 0; i < columns_.size(); ++i) {
      const auto found = std::ranges::find(own, columns_[i].name, &Column::name);
      const size_t place =
          first_ == 0 || like == nullptr ? i : static_cast<size_t>(found - own.begin());
      if (place >= fields_ && std::ranges::find(used, i) != used.end()) {
        return Status::Error(StatusCode::kBadData, "%s: line 1: there is no column %zu '%s'",
                             file_.path().c_str(), i + 1, columns_[i].name.c_str());
      }
      places_.push_back(place);
    }
    return {};
  }

  // Which columns are categorical, and their categories: of those that have a number, as far as it
  // is known, none are kept.
  Status Learn(const std::vector<size_t>& categorical) {
    std::vector<bool> is_listed(fields_), is_number(fields_);
    for (const size_t column : categorical) is_listed[column] = true;
    std::vector<std::set<std::string>> found(fields_);
    CsvRecord record;
    for (int64_t row = 0; row < rows(); ++row) {
      ENGINE_RETURN_IF_ERROR(Split(row, &record));
      for (size_t i = 0; i < fields_; ++i) {
        const std::string_view field = record.fields()[i];
        if (IsMissing(field)) continue;
        const std::optional<double> number = data_kit::ParseNumber(field);
        if (!number || *number != std::floor(*number)) columns_[i].is_whole = false;
        if (number && !is_listed[i]) is_number[i] = true;
        if (!is_number[i]) found[i].emplace(field);
        if (found[i].size() > kMostCategories) {
          if (is_listed[i]) return Bad(row, i, "there are more than 65536 categories");
          is_number[i] = true;  // text: who reads it as numbers is told
        }
        if (is_number[i]) found[i].clear();
      }
    }
    for (size_t i = 0; i < fields_; ++i) {
      columns_[i].categories.assign(found[i].begin(), found[i].end());
      std::ranges::sort(columns_[i].categories, CategoryLess);
    }
    return {};
  }

 private:
  // With as many fields as the first record.
  Status Split(int64_t row, CsvRecord* record) const {
    ENGINE_RETURN_IF_ERROR(file_.Split(first_ + row, record));
    const size_t there = record->fields().size();
    if (there == fields_) return {};
    return file_.BadField(first_ + row, std::min(there, fields_), "",
                          std::to_string(there) + " fields instead of " + std::to_string(fields_));
  }

  // What Read writes for a field.
  Result<double> Number(int64_t row, size_t column, std::string_view field) const {
    const std::vector<std::string>& categories = columns_[column].categories;
    if (!categories.empty() && IsMissing(field)) return -1.0;
    if (!categories.empty()) {
      const auto found =
          std::lower_bound(categories.begin(), categories.end(), std::string(field), CategoryLess);
      const bool is_one = found != categories.end() && *found == field;
      return is_one ? static_cast<double>(found - categories.begin()) : -1.0;
    }
    if (const std::optional<double> number = data_kit::ParseNumber(field)) return *number;
    if (IsMissing(field)) return kMissing;
    return Bad(row, column,
               std::string(field.substr(0, 60))
                   .append(": this is no number, as others of its column are; if they are "
                           "categories, name it in data.table.categorical"));
  }

  // Constant after Open.
  CsvFile file_;
  const int64_t first_;  // record of row 0
  size_t fields_ = 0;
  std::vector<Column> columns_;
  std::vector<size_t> places_;  // of each column, among the fields
};

}  // namespace

Result<std::unique_ptr<Source>> OpenCsv(const std::string& path, const CsvFormat& format,
                                        const std::string& categorical, const Source* like,
                                        std::span<const size_t> used) {
  ENGINE_ASSIGN_OR_RETURN(CsvFile file, CsvFile::Open(path, format.delimiter));
  auto source = std::make_unique<CsvSource>(std::move(file), format.header);
  ENGINE_RETURN_IF_ERROR(source->ReadHeader(like, used));
  if (like == nullptr) {
    ENGINE_ASSIGN_OR_RETURN(const auto columns,
                            FindColumns("categorical", categorical, source->columns()));
    ENGINE_RETURN_IF_ERROR(source->Learn(columns));
  }
  return std::unique_ptr<Source>(std::move(source));
}

}  // namespace engine::table
