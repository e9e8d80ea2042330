#include "data_kit/normalization.h"

#include <cinttypes>
#include <cmath>
#include <cstdio>
#include <numeric>

#include "data_kit/csv.h"

namespace engine::data_kit {

// The mean first, so that squares are of small numbers.
void Moments::Add(const float* numbers, int64_t count) {
  if (count == 0) return;
  const double mean = std::accumulate(numbers, numbers + count, 0.0) / static_cast<double>(count);
  double squares = 0;
  for (int64_t i = 0; i < count; ++i) squares += (numbers[i] - mean) * (numbers[i] - mean);
  Combine(static_cast<double>(count), mean, squares);
}

// squares_ is the sum of (x - mean_)^2.
void Moments::Combine(double count, double mean, double squares) {
  const double both = count_ + count, apart = mean - mean_;
  squares_ += squares + apart * apart * count_ * count / both;
  mean_ += apart * count / both;
  count_ = both;
}

double Moments::deviation() const {
  const double found = count_ > 0 ? std::sqrt(squares_ / count_) : 0;
  return found > 0 ? found : 1;
}

Result<Normalization> Normalization::Parse(const char* block, std::string_view mean,
                                           std::string_view deviation) {
  Normalization made;
  const auto read = [&](const char* option, std::string_view text, float otherwise,
                        std::vector<float>* out) -> Status {
    const std::string key = std::string(block) + "." + option;
    ENGINE_ASSIGN_OR_RETURN(const std::vector<double> numbers, ParseNumbers(key.c_str(), text));
    out->assign(numbers.begin(), numbers.end());
    if (out->empty()) *out = {otherwise};
    return {};
  };
  ENGINE_RETURN_IF_ERROR(read("mean", mean, 0, &made.mean));
  ENGINE_RETURN_IF_ERROR(read("std", deviation, 1, &made.deviation));
  for (const float number : made.deviation) {
    if (number > 0) continue;
    return Status::Error(StatusCode::kConfig, "%s.std: %g is not above 0", block, double{number});
  }
  return made;
}

Normalization Normalization::Measured(const std::vector<Moments>& channels) {
  Normalization made;
  for (const Moments& channel : channels) {
    made.mean.push_back(static_cast<float>(channel.mean()));
    made.deviation.push_back(static_cast<float>(channel.deviation()));
  }
  return made;
}

Status Normalization::SpreadOver(const char* block, int64_t channels) {
  const auto wanted = static_cast<size_t>(channels);
  for (auto* list : {&mean, &deviation}) {
    if (list->size() == 1) list->resize(wanted, list->front());
    if (list->size() == wanted) continue;
    return Status::Error(StatusCode::kConfig,
                         "%s.%s has %zu numbers for images of %" PRId64
                         " channels; give one for each, or one for all",
                         block, list == &mean ? "mean" : "std", list->size(), channels);
  }
  return {};
}

void Normalization::Apply(int64_t channel, float* numbers, int64_t count) const {
  const float center = mean[static_cast<size_t>(channel)];
  const float scale = deviation[static_cast<size_t>(channel)];
  for (int64_t i = 0; i < count; ++i) numbers[i] = (numbers[i] - center) / scale;
}

std::string Normalization::Text() const {
  const auto list = [](const std::vector<float>& numbers) {
    std::string text;
    for (const float number : numbers) {
      char digits[32];
      std::snprintf(digits, sizeof digits, "%s%.7g", text.empty() ? "" : ", ", double{number});
      text += digits;
    }
    return text;
  };
  return "mean: \"" + list(mean) + "\" std: \"" + list(deviation) + "\"";
}

}  // namespace engine::data_kit
