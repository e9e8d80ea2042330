// table: rows of numbers and categories, in CSV files and arrays of NumPy.
//
// A sample has `features` (float32), `target` (int32, a class; or float32, one number or several)
// and, if there is one, a weight. A class is a whole number, or the place of its category among the
// sorted ones of its column. A categorical column is one-hot, a feature for each category, or one
// feature, the number of the category.
//
// What is held out is a share of the rows, chosen by a hash of seed and row, or files of its own,
// which are read with the categories, means and deviations of the data to train on.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "data_kit/csv.h"
#include "data_kit/normalization.h"
#include "data_kit/npy.h"
#include "kit/create.h"
#include "kit/dataset.h"
#include "kit/digest.h"
#include "kit/options.h"
#include "source.h"

namespace engine::table {
namespace {

constexpr double kMostGuessedClasses = 1000, kMostClasses = 1 << 24;

enum class TargetType { kGuess, kClass, kNumber };
TargetType TargetTypeOf(std::string_view word) {
  if (word == "class") return TargetType::kClass;
  return word == "number" ? TargetType::kNumber : TargetType::kGuess;
}

struct Feature {
  size_t width = 1;  // numbers of the sample
  float mean = 0, deviation = 1;
};

// Tensors are known after Open alone: how many features there are follows from the categories.
class Table final : public kit::ReadDataset {
 public:
  explicit Table(const Options& options)
      : ReadDataset("table " + std::string(options.String("path")),
                    {.name = "features", .shape = {}}, {.name = "target", .shape = {}}),
        paths_{std::string(options.String("path")), std::string(options.String("target_path")),
               std::string(options.String("weight_path"))},
        eval_paths_{std::string(options.String("eval_path")),
                    std::string(options.String("eval_target_path")),
                    std::string(options.String("eval_weight_path"))},
        choices_{std::string(options.String("features")), std::string(options.String("target")),
                 std::string(options.String("weight")), std::string(options.String("ignore"))},
        categorical_(options.String("categorical")),
        delimiter_(options.String("delimiter")),
        header_(options.Bool("header")),
        one_hot_(options.String("encode") == "one_hot"),
        normalizes_(options.Bool("normalize")),
        fills_missing_(options.String("missing") == "mean"),
        target_type_(TargetTypeOf(options.String("target_type"))),
        shape_(options.Ints("shape").begin(), options.Ints("shape").end()),
        holdout_(options.Float("holdout")) {
    knows_samples_ = false;
  }

  Status Fill(const FillCall& call) const noexcept override {
    return kit::CatchNoMemory([&] { return FillRows(call); });
  }

 private:
  Status Read() override {
    NpyLayout layout;
    ENGINE_ASSIGN_OR_RETURN(train_, OpenSource(paths_, &layout));
    ENGINE_RETURN_IF_ERROR(Choose(layout));
    if (!eval_paths_.x.empty()) {
      NpyLayout same;
      ENGINE_ASSIGN_OR_RETURN(eval_, OpenSource(eval_paths_, &same));
      if (layout != same) {
        return Status::Error(
            StatusCode::kBadData,
            "%s: its rows, targets or weights have another shape than those of %s; "
            "see eval_target_path, eval_weight_path",
            eval_paths_.x.c_str(), paths_.x.c_str());
      }
    }
    split_ = kit::RowSplit(train_->rows(), eval_ ? 0 : holdout_, seed_);
    train_samples_ = split_.count(Split::kTrain);
    held_out_samples_ = eval_ ? eval_->rows() : split_.count(Split::kHeldOut);
    ENGINE_RETURN_IF_ERROR(MakeFeatures(layout.y == 0 ? std::vector<int64_t>() : layout.extents));
    ENGINE_RETURN_IF_ERROR(MakeTarget());
    kit::Digest digest;
    train_->AddTo(digest);
    digest_ = digest.Text();
    knows_samples_ = true;
    return {};
  }

  // After the data to train on, `train_`, with its columns.
  Result<std::unique_ptr<Source>> OpenSource(const NpyPaths& paths, NpyLayout* layout) const {
    if (data_kit::IsNumpyFile(paths.x)) return OpenNpyTable(paths, layout);
    if (!paths.y.empty() || !paths.w.empty()) {
      return Status::Error(StatusCode::kConfig,
                           "data.table: target_path and weight_path are for .npy files; of %s name "
                           "the columns with target and weight",
                           paths.x.c_str());
    }
    ENGINE_ASSIGN_OR_RETURN(const char delimiter,
                            data_kit::ParseDelimiter("data.table.delimiter", delimiter_));
    return OpenCsv(paths.x, {delimiter, header_}, categorical_, train_.get(), used_);
  }

  // Which columns are what: those of arrays of their own follow from the layout.
  Status Choose(const NpyLayout& layout) {
    std::vector<Column> columns = train_->columns();
    columns.resize(columns.size() - layout.w);
    if (layout.y == 0) {
      ENGINE_ASSIGN_OR_RETURN(choice_, ChooseColumns(choices_, columns));
    } else if (choices_ != ChoiceOptions()) {
      return Status::Error(StatusCode::kConfig,
                           "data.table: features, target, weight and ignore choose columns of one "
                           "array; where targets are an array of their own, leave them out");
    }
    for (size_t i = 0; layout.y > 0 && i < columns.size(); ++i) {
      (i < layout.x ? choice_.features : choice_.targets).push_back(i);
    }
    if (layout.w > 0) choice_.weight = columns.size();
    has_weight_ = choice_.weight.has_value();
    used_ = choice_.features;
    used_.insert(used_.end(), choice_.targets.begin(), choice_.targets.end());
    if (has_weight_) used_.push_back(*choice_.weight);
    return {};
  }

  // Where in a sample each feature lies, its mean and deviation, and the shape of all of them.
  Status MakeFeatures(const std::vector<int64_t>& extents) {
    features_.resize(choice_.features.size());
    std::vector<data_kit::Moments> moments(features_.size());
    if (normalizes_ || fills_missing_) {
      std::vector<double> row(features_.size());
      for (int64_t i = 0; i < train_samples_; ++i) {
        ENGINE_RETURN_IF_ERROR(
            train_->Read(split_.Row(Split::kTrain, i), choice_.features, row.data()));
        for (size_t f = 0; f < row.size(); ++f) {
          if (std::isfinite(row[f])) moments[f].Add(row[f]);
        }
      }
    }
    int64_t count = 0;
    for (size_t f = 0; f < features_.size(); ++f) {
      const size_t categories = train_->columns()[choice_.features[f]].categories.size();
      features_[f].width = one_hot_ && categories > 0 ? categories : 1;
      features_[f].mean = static_cast<float>(moments[f].mean());
      if (normalizes_ && categories == 0) {
        features_[f].deviation = static_cast<float>(moments[f].deviation());
      }
      count += static_cast<int64_t>(features_[f].width);
    }
    input_.shape = {count};
    const std::vector<int64_t>& shape = shape_.empty() ? extents : shape_;
    if (shape.empty()) return {};
    Shape given;
    for (const int64_t extent : shape) {
      if (given.ndim < kMaxDims - 1) given[given.ndim++] = extent;
    }
    if (given.Count() != count || shape.size() >= kMaxDims) {
      return Status::Error(StatusCode::kConfig,
                           "data.table.shape: at most 5 extents whose product is the number of "
                           "features, %lld",
                           static_cast<long long>(count));
    }
    input_.shape = given;
    if (given.ndim == 3) input_.content = TensorContent::kImage;
    return {};
  }

  // Whether the target is a class: as the option says, or as the data looks.
  Status MakeTarget() {
    const std::vector<size_t>& targets = choice_.targets;
    const Column& column = train_->columns()[targets.front()];
    bool is_class = target_type_ == TargetType::kClass;
    if (target_type_ == TargetType::kGuess) {
      is_class = targets.size() == 1 && (column.is_whole || !column.categories.empty());
    }
    if (is_class && targets.size() > 1) {
      return Status::Error(StatusCode::kConfig,
                           "data.table.target_type: one target is a class, %zu are numbers",
                           targets.size());
    }
    int64_t classes = 0;
    if (is_class) {
      class_names_ = column.categories;
      ENGINE_ASSIGN_OR_RETURN(classes, CountClasses(targets.front()));
    }
    if (classes > 0) {
      target_.dtype = DType::kInt32;
      target_.classes = classes;
    } else if (targets.size() > 1) {
      target_.shape = {static_cast<int64_t>(targets.size())};
    }
    return {};
  }

  // Of a column of numbers the largest and one more; 0: not to be taken for classes.
  Result<int64_t> CountClasses(size_t target) const {
    const size_t categories = train_->columns()[target].categories.size();
    if (categories > 0) return static_cast<int64_t>(categories);
    double largest = 0;
    for (const Source* source : {train_.get(), eval_.get()}) {
      for (int64_t row = 0; source != nullptr && row < source->rows(); ++row) {
        double value = 0;
        ENGINE_RETURN_IF_ERROR(source->Read(row, {&target, 1}, &value));
        const bool fits = value >= 0 && value < kMostClasses && value == std::floor(value);
        const bool guessed = target_type_ == TargetType::kGuess;
        if (guessed && (!fits || value >= kMostGuessedClasses)) return 0;
        if (!fits)
          return source->Bad(row, target,
                             "this is no class, 0, 1, 2, ...; of CSV name the column in "
                             "data.table.categorical");
        largest = std::max(largest, value);
      }
    }
    return static_cast<int64_t>(largest) + 1;
  }

  // A row is read once: `values` are its used columns, features first, then targets and weight.
  Status FillRows(const FillCall& call) const {
    const bool own_file = call.split == Split::kHeldOut && eval_ != nullptr;
    const Source& from = own_file ? *eval_ : *train_;
    auto* features = static_cast<float*>(call.tensors[0]);
    auto* target = static_cast<std::byte*>(call.tensors[1]);
    auto* weight = has_weight_ ? static_cast<float*>(call.tensors[2]) : nullptr;
    std::vector<double> values(used_.size());
    for (const int64_t index : call.indices) {
      const int64_t row = own_file ? index : split_.Row(call.split, index);
      ENGINE_RETURN_IF_ERROR(from.Read(row, used_, values.data()));
      ENGINE_RETURN_IF_ERROR(WriteFeatures(from, row, values, features));
      features += input_.shape.Count();
      const double* next = values.data() + features_.size();
      for (size_t t = 0; t < choice_.targets.size(); ++t, target += 4) {
        ENGINE_RETURN_IF_ERROR(WriteTarget(from, row, choice_.targets[t], *next++, target));
      }
      if (weight == nullptr) continue;
      *weight++ = static_cast<float>(*next);
      if (!(*next >= 0 && std::isfinite(*next))) {
        return from.Bad(row, *choice_.weight, "a weight must be a number of at least 0");
      }
    }
    return {};
  }

  Status WriteFeatures(const Source& from, int64_t row, const std::vector<double>& values,
                       float* out) const {
    for (size_t f = 0; f < features_.size(); ++f) {
      const Feature& feature = features_[f];
      const bool is_categorical = !train_->columns()[choice_.features[f]].categories.empty();
      if (is_categorical && one_hot_) {  // one that the data to train on lacks is none of them
        std::fill_n(out, feature.width, 0.0f);
        if (values[f] >= 0) out[static_cast<size_t>(values[f])] = 1;
      } else if (is_categorical && values[f] < 0) {
        return from.Bad(row, choice_.features[f],
                        "missing, or a category that the data to train on lacks");
      } else {
        const bool fills = fills_missing_ && !std::isfinite(values[f]);
        const double value = fills ? double{feature.mean} : values[f];
        const double centered =
            normalizes_ && !is_categorical ? value - double{feature.mean} : value;
        *out = static_cast<float>(centered / double{feature.deviation});
        if (!std::isfinite(*out)) {
          return from.Bad(row, choice_.features[f],
                          "a number is missing, or too large for float32; with data.table.missing "
                          "\"mean\" a missing one is the mean of its column");
        }
      }
      out += feature.width;
    }
    return {};
  }

  // Four bytes, an int32 or a float.
  Status WriteTarget(const Source& from, int64_t row, size_t column, double value,
                     std::byte* out) const {
    if (target_.classes > 0) {
      if (!(value >= 0 && value < static_cast<double>(target_.classes) &&
            value == std::floor(value))) {
        return from.Bad(row, column, "the class is missing, or none of the data to train on");
      }
      const auto number = static_cast<int32_t>(value);
      std::memcpy(out, &number, sizeof number);
      return {};
    }
    const auto number = static_cast<float>(value);
    std::memcpy(out, &number, sizeof number);
    if (std::isfinite(number)) return {};
    return from.Bad(row, column, "the target is missing, or too large for float32");
  }

  // Constant after Open.
  const NpyPaths paths_, eval_paths_;
  const ChoiceOptions choices_;
  const std::string categorical_, delimiter_;
  const bool header_, one_hot_, normalizes_, fills_missing_;
  const TargetType target_type_;
  const std::vector<int64_t> shape_;
  const double holdout_;
  std::unique_ptr<Source> train_, eval_;  // eval_: or null
  kit::RowSplit split_;
  Choice choice_;
  std::vector<Feature> features_;
  std::vector<size_t> used_;  // columns: features, targets, weight
};

}  // namespace

extern "C" ENGINE_PLUGIN_EXPORT constexpr auto ENGINE_PLUGIN_SYMBOL = kit::DescribePlugin(
    PluginKind::kDataset, "table", "1.0.0",
    "rows of CSV files and of NumPy's .npy and .npz: numbers, categories, classes",
    kit::Create<Table>,
    std::array{
        kit::PathOption("path", kit::Path::kRequired, "a .csv, .npy, .npz or .npz:ARRAY"),
        kit::PathOption(
            "target_path", kit::Path::kOptional,
            "of .npy: the array of targets; without it one of the columns is the target"),
        kit::PathOption("weight_path", kit::Path::kOptional, "of .npy: an array of sample weights"),
        kit::PathOption("eval_path", kit::Path::kOptional, "the same to hold out"),
        kit::PathOption("eval_target_path", kit::Path::kOptional, "its targets"),
        kit::PathOption("eval_weight_path", kit::Path::kOptional, "its weights"),
        kit::HoldoutOption("without eval_path: the share of rows, by a hash, that is held out"),
        kit::StringOption("target", "",
                          "columns, by name or number (-1: the last, which is the default)"),
        kit::StringOption("features", "", "columns; default: all the others"),
        kit::StringOption("weight", "", "column that says how much each row counts in the loss"),
        kit::StringOption("ignore", "", "columns that are not features"),
        kit::StringOption("categorical", "",
                          "columns of numbers that are categories: postal codes, months"),
        kit::EnumOption("encode", "one_hot", "one_hot|number",
                        "what a categorical column becomes: a feature for each category, or one "
                        "with its number"),
        kit::EnumOption("target_type", "guess", "guess|class|number",
                        "guess: text, and whole numbers from 0 to 999, are classes"),
        kit::BoolOption("normalize", "false",
                        "columns of numbers get mean 0 and deviation 1 over the rows trained on"),
        kit::EnumOption("missing", "error", "error|mean", "numbers that are missing"),
        kit::BoolOption("header", "true", "of CSV: the first line has the names of the columns"),
        kit::StringOption("delimiter", ",", "of CSV: one character, or \"tab\""),
        kit::IntsOption("shape", "", 1, 1 << 30, "of the features of a sample: 1,28,28")});

}  // namespace engine::table
