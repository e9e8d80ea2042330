#include "app/run/predict.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

namespace engine::run {
namespace {

using Json = nlohmann::ordered_json;

struct Guess {
  int64_t number;
  double probability;
};

// The `count` likeliest classes; of equal ones the first.
std::vector<Guess> Likeliest(std::span<const float> scores, OutputKind kind, int64_t count) {
  if (kind == OutputKind::kSign) {
    const double one = 1 / (1 + std::exp(-double{scores[0]}));
    std::vector<Guess> both = {{1, one}, {0, 1 - one}};
    if (scores[0] <= 0) std::swap(both[0], both[1]);
    both.resize(static_cast<size_t>(std::min<int64_t>(count, 2)));
    return both;
  }
  const float largest = *std::ranges::max_element(scores);
  double sum = 0;
  for (const float score : scores) sum += std::exp(double{score} - largest);
  std::vector<int64_t> order(scores.size());
  std::iota(order.begin(), order.end(), 0);
  count = std::min(count, static_cast<int64_t>(order.size()));
  std::ranges::partial_sort(order, order.begin() + count, [&](int64_t a, int64_t b) {
    const float x = scores[static_cast<size_t>(a)], y = scores[static_cast<size_t>(b)];
    return x > y || (x == y && a < b);
  });
  std::vector<Guess> found;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t number = order[static_cast<size_t>(i)];
    found.push_back(
        {number, std::exp(double{scores[static_cast<size_t>(number)]} - largest) / sum});
  }
  return found;
}

// A field of CSV (RFC 4180).
std::string Quoted(const std::string& text) {
  if (text.find_first_of(",\"\n\r") == text.npos) return text;
  std::string quoted = "\"";
  for (const char c : text) quoted += c == '"' ? "\"\"" : std::string(1, c);
  return quoted + "\"";
}

class Writer {
 public:
  Writer(const TrainedModel& model, const checkpoint::ClassNameLists& names,
         const PredictOptions& options, const std::function<Status(std::string_view)>& write)
      : options_(options), write_(write) {
    const graph::Graph& graph = model.memory->graph();
    output_ = graph.values[graph.logits].spec.shape;
    max_samples_ = graph.max_samples;
    per_sample_ = output_.Count() / max_samples_;
    if (!model.targets.empty()) {
      const SampleTensor& target = model.targets[0];
      kind_ = KindOf(graph, target, options.loss);
      const auto found = names.find(std::string(target.name));
      if (found != names.end()) names_ = found->second;
      rows_ = target.shape.Count();
    }
    if (kind_ == OutputKind::kOther) rows_ = 1;
    width_ = per_sample_ / rows_;
  }

  int64_t per_sample() const { return per_sample_; }

  Status Begin(int64_t samples) const {
    if (options_.format == PredictionFormat::kNpy) return write_(NpyHeader(samples));
    if (options_.format == PredictionFormat::kJson) return {};
    std::string line = rows_ > 1 ? "sample,element" : "sample";
    if (!IsClass()) {
      for (int64_t i = 0; i < width_; ++i) line += fmt::format(",prediction{}", i);
      return write_(line + "\n");
    }
    const int64_t classes = kind_ == OutputKind::kSign ? 2 : width_;
    for (int64_t k = 1; k <= std::min(options_.top, classes); ++k) {
      const std::string rank = k == 1 ? "" : std::to_string(k);
      line += ",class" + rank + (names_.empty() ? "" : ",name" + rank) + ",probability" + rank;
    }
    return write_(line + "\n");
  }

  Status Add(const char* split, int64_t index, std::span<const float> outputs) const {
    if (options_.format == PredictionFormat::kNpy) {
      return write_({reinterpret_cast<const char*>(outputs.data()), outputs.size_bytes()});
    }
    if (options_.format == PredictionFormat::kCsv) return AddCsv(index, outputs);
    Json line = {{"sample", index}, {"split", split}};
    Json elements = Json::array();
    for (int64_t row = 0; row < rows_; ++row) elements.push_back(Element(Row(outputs, row)));
    if (rows_ == 1) {
      line.update(elements[0]);
    } else {
      line["elements"] = elements;
    }
    if (options_.outputs) line["outputs"] = outputs;
    return write_(line.dump() + "\n");
  }

 private:
  bool IsClass() const { return kind_ == OutputKind::kScores || kind_ == OutputKind::kSign; }
  std::string NameOf(int64_t number) const {
    const auto i = static_cast<size_t>(number);
    return i < names_.size() ? names_[i] : "";
  }
  std::span<const float> Row(std::span<const float> outputs, int64_t row) const {
    return outputs.subspan(static_cast<size_t>(row * width_), static_cast<size_t>(width_));
  }

  Json Element(std::span<const float> row) const {
    if (!IsClass()) return width_ == 1 ? Json{{"prediction", row[0]}} : Json{{"prediction", row}};
    Json top = Json::array();
    for (const Guess& guess : Likeliest(row, kind_, options_.top)) {
      Json& one = top.emplace_back(Json{{"class", guess.number}});
      if (!names_.empty()) one["name"] = NameOf(guess.number);
      one["probability"] = guess.probability;
    }
    Json element = top[0];
    if (options_.top > 1) element["top"] = top;
    return element;
  }

  Status AddCsv(int64_t index, std::span<const float> outputs) const {
    std::string lines;
    for (int64_t row = 0; row < rows_; ++row) {
      lines += std::to_string(index) + (rows_ > 1 ? "," + std::to_string(row) : "");
      if (!IsClass()) {
        for (const float value : Row(outputs, row)) lines += fmt::format(",{}", value);
      } else {
        for (const Guess& guess : Likeliest(Row(outputs, row), kind_, options_.top)) {
          lines += fmt::format(",{}", guess.number);
          if (!names_.empty()) lines += "," + Quoted(NameOf(guess.number));
          lines += fmt::format(",{:.6g}", guess.probability);
        }
      }
      lines += "\n";
    }
    return write_(lines);
  }

  // Version 1.0 of numpy/lib/format.py: magic, size of the rest of the header, a Python dict; all of
  // it a multiple of 64 bytes.
  std::string NpyHeader(int64_t samples) const {
    std::string shape = std::to_string(samples * output_[0] / max_samples_);
    for (int32_t i = 1; i < output_.ndim; ++i) shape += ", " + std::to_string(output_[i]);
    if (output_.ndim < 2) shape += ",";
    std::string text = "{'descr': '<f4', 'fortran_order': False, 'shape': (" + shape + "), }";
    constexpr size_t kPrefix = 10;
    text.append(63 - (kPrefix + text.size()) % 64, ' ');
    text += '\n';
    const auto size = static_cast<uint16_t>(text.size());
    std::string header("\x93NUMPY\x01\x00", 8);
    header += static_cast<char>(size & 0xff);
    header += static_cast<char>(size >> 8);
    return header + text;
  }

  const PredictOptions& options_;
  const std::function<Status(std::string_view)>& write_;
  OutputKind kind_ = OutputKind::kOther;
  std::vector<std::string> names_;
  Shape output_;  // of a full batch
  int64_t max_samples_ = 1, per_sample_ = 1, rows_ = 1, width_ = 1;
};

}  // namespace

Status Predict(TrainedModel& model, const checkpoint::ClassNameLists& names,
               const train::BatchRequest& batches, const PredictOptions& options,
               const std::function<Status(std::string_view)>& write) {
  const DatasetInfo info = model.data->info();
  exec::ModelMemory& memory = *model.memory;
  const int64_t train_samples = options.held_out_only ? 0 : info.train_samples;
  const Writer writer(model, names, options, write);
  ENGINE_RETURN_IF_ERROR(writer.Begin(train_samples + info.held_out_samples));
  std::vector<float> outputs(static_cast<size_t>(memory.graph().max_samples * writer.per_sample()));
  for (const auto& [split, samples, name] :
       {std::tuple(Split::kTrain, train_samples, "train"),
        std::tuple(Split::kHeldOut, info.held_out_samples, "held_out")}) {
    if (samples == 0) continue;
    train::BatchRequest request = batches;
    request.split = split;
    ENGINE_ASSIGN_OR_RETURN(const auto stream, model.data->Batches(request));
    int64_t index = 0;
    while (index < samples) {
      ENGINE_ASSIGN_OR_RETURN(const train::Batch* batch, stream->Next());
      ENGINE_RETURN_IF_ERROR(memory.SetBatch(batch->input, nullptr, batch->samples,
                                             batch->others.first(memory.graph().others.size())));
      ENGINE_RETURN_IF_ERROR(memory.RunForward());
      const std::span all(outputs.data(),
                          static_cast<size_t>(batch->samples * writer.per_sample()));
      ENGINE_RETURN_IF_ERROR(memory.ReadFloats({.data = memory.logits().data,
                                                .shape = {static_cast<int64_t>(all.size())},
                                                .dtype = memory.logits().dtype},
                                               outputs.data()));
      for (int64_t i = 0; i < batch->samples; ++i, ++index) {
        const auto size = static_cast<size_t>(writer.per_sample());
        ENGINE_RETURN_IF_ERROR(
            writer.Add(name, index, all.subspan(static_cast<size_t>(i) * size, size)));
      }
    }
  }
  return {};
}

}  // namespace engine::run
