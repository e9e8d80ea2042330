#include "app/run/evaluation.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstring>
#include <memory>
#include <string_view>
#include <utility>

#include "app/launch/deadlines.h"
#include "kit/dataset.h"

namespace engine::run {
namespace {

enum Sum {
  kLoss,
  kLossWeight,
  kLossCorrect,
  kTargets,
  kWeight,
  kCorrect,
  kTop5,
  kAbsolute,
  kSquared,
  kSumCount
};
constexpr int64_t kTop = 5;

// Area under the ROC curve: the chance that a sample of class 1 has a higher score than one of class
// 0, where equal scores count half. `places`: score, class and weight (0: no sample) of each sample.
double Auc(std::span<const float> places) {
  std::vector<size_t> order;
  for (size_t i = 0; i + 2 < places.size(); i += 3) {
    if (places[i + 2] <= 0) continue;
    if (std::isnan(places[i])) return NAN;  // has no place in an order
    order.push_back(i);
  }
  std::ranges::sort(order, {}, [&](size_t i) { return places[i]; });
  double below = 0, positive = 0, area = 0;
  for (size_t begin = 0, end = 0; begin < order.size(); begin = end) {
    double zeros = 0, ones = 0;
    for (; end < order.size() && places[order[end]] == places[order[begin]]; ++end) {
      (places[order[end] + 1] > 0.5f ? ones : zeros) += places[order[end] + 2];
    }
    area += ones * (below + zeros / 2);
    below += zeros;
    positive += ones;
  }
  return below > 0 && positive > 0 ? area / (below * positive) : NAN;
}

// What a batch has of tensor `index` of its targets.
const void* TargetOf(const train::Batch& batch, const DatasetInfo& info, size_t index) {
  return index == 0 ? batch.target : batch.others[info.inputs.size() - 1 + index - 1];
}

void KeepWorst(std::vector<Mistake>* mistakes, size_t count) {
  std::ranges::sort(*mistakes, {},
                    [](const Mistake& one) { return std::pair(-one.margin, one.sample); });
  if (mistakes->size() > count) mistakes->resize(count);
}

class Meter {
 public:
  Meter(exec::ModelMemory& memory, const DatasetInfo& info, int64_t samples,
        const train::BatchRequest& batches, const EvaluationOptions& options)
      : memory_(memory), info_(info), options_(options), rank_(static_cast<size_t>(batches.rank)) {
    const graph::Graph& graph = memory.graph();
    if (!info.targets.empty()) {
      target_ = info.targets[0];
      kind_ = KindOf(graph, target_, options.loss);
    }
    for (size_t i = 0; i < info.targets.size(); ++i) {
      if (info.targets[i].name == kit::kSampleWeight) weight_ = i;
    }
    const bool wide = kind_ == OutputKind::kScores && target_.classes > kMostScores;
    rows_ = target_.shape.Count();
    width_ = kind_ == OutputKind::kScores ? target_.classes : 1;
    if (kind_ != OutputKind::kOther && !wide) {
      outputs_.resize(static_cast<size_t>(graph.max_samples * rows_ * width_));
    }
    metrics_ = MetricsOf(graph, info, options.loss);
    if (std::ranges::find(metrics_, "auc") != metrics_.end()) {
      places_.resize(static_cast<size_t>(samples) * 3);
    }
    classes_ = kind_ == OutputKind::kScores ? width_ : kind_ == OutputKind::kSign ? 2 : 0;
    if (!options.by_class || wide) classes_ = 0;
    confused_ = classes_ <= kMostConfused ? classes_ : 0;
    most_mistakes_ = classes_ > 0 && rows_ == 1 ? options.mistakes : 0;
    counts_ = static_cast<size_t>(kSumCount + 3 * classes_ + confused_ * confused_);
    sums_.resize(counts_ + most_mistakes_ * kOfMistake * static_cast<size_t>(batches.world_size));
  }

  // The forward pass of `samples` samples of the batch from `begin` on; sample 0 of it has `position`
  // among all.
  Status Add(const train::Batch& batch, int64_t begin, int64_t samples, int64_t position) {
    ENGINE_RETURN_IF_ERROR(
        memory_.SetBatch(batch.input, batch.target, samples, batch.others, begin));
    ENGINE_RETURN_IF_ERROR(memory_.RunForward());
    ENGINE_ASSIGN_OR_RETURN(const exec::StepStatistics statistics, memory_.ReadStatistics());
    sums_[kLoss] += statistics.loss_sum;
    sums_[kLossWeight] += statistics.count;
    sums_[kLossCorrect] += statistics.correct;
    if (info_.targets.empty()) return {};
    if (!outputs_.empty()) {
      ENGINE_RETURN_IF_ERROR(memory_.ReadFloats({.data = memory_.logits().data,
                                                 .shape = {samples * rows_ * width_},
                                                 .dtype = memory_.logits().dtype},
                                                outputs_.data()));
    }
    const auto* const weights =
        weight_ > 0 ? static_cast<const float*>(TargetOf(batch, info_, weight_)) : nullptr;
    for (int64_t row = 0; row < samples * rows_; ++row) {
      const int64_t sample = row / rows_;
      const float weight = weights == nullptr ? 1 : weights[begin + sample];
      if (weight > 0) AddRow(batch.target, begin * rows_ + row, row, weight, position + sample);
    }
    return {};
  }

  // What is counted, and in a place of each rank its mistakes.
  std::span<double> Sums() {
    KeepWorst(&mistakes_, most_mistakes_);
    double* at = sums_.data() + counts_ + rank_ * most_mistakes_ * kOfMistake;
    for (const Mistake& one : mistakes_) {
      at = std::ranges::copy(
               std::array{static_cast<double>(one.sample), static_cast<double>(one.target),
                          static_cast<double>(one.predicted), one.margin},
               at)
               .out;
    }
    return sums_;
  }
  std::span<float> places() { return places_; }

  Evaluation Finish() const {
    Evaluation done;
    train::EvaluationReport& report = done.report;
    report.loss = Mean(kLoss, kLossWeight);
    report.targets = std::llround(info_.targets.empty() ? sums_[kLossWeight] : sums_[kTargets]);
    for (const std::string& name : metrics_) {
      const double value = Figure(name);
      if (std::isfinite(value)) report.metrics.push_back({name, value});
    }
    const double* at = sums_.data() + kSumCount;
    for (int64_t i = 0; i < classes_; ++i, at += 3) done.classes.push_back({at[0], at[1], at[2]});
    done.confusion.assign(at, sums_.data() + counts_);
    for (size_t i = counts_; i < sums_.size(); i += kOfMistake) {
      if (sums_[i + 1] == sums_[i + 2]) continue;  // none
      done.mistakes.push_back({std::llround(sums_[i]), std::llround(sums_[i + 1]),
                               std::llround(sums_[i + 2]), sums_[i + 3]});
    }
    KeepWorst(&done.mistakes, most_mistakes_);
    return done;
  }

 private:
  static constexpr size_t kOfMistake = 4;  // numbers

  double Mean(Sum sum, Sum weight) const {
    return sums_[weight] > 0 ? sums_[sum] / sums_[weight] : 0;
  }
  double Figure(std::string_view name) const {
    if (name == "accuracy") {
      return outputs_.empty() ? Mean(kLossCorrect, kLossWeight) : Mean(kCorrect, kWeight);
    }
    if (name == "top5_accuracy") return Mean(kTop5, kWeight);
    if (name == "perplexity") return std::exp(Mean(kLoss, kLossWeight));
    if (name == "auc") return Auc(places_);
    return name == "mae" ? Mean(kAbsolute, kWeight) : std::sqrt(Mean(kSquared, kWeight));
  }

  // Row `row` of the outputs, beside element `at` of the targets.
  void AddRow(const void* targets, int64_t at, int64_t row, float weight, int64_t position) {
    const bool is_class = target_.dtype == DType::kInt32;
    const int32_t number = is_class ? static_cast<const int32_t*>(targets)[at] : 0;
    if (kind_ == OutputKind::kScores && (number < 0 || number == options_.loss.ignored)) return;
    sums_[kTargets] += 1;
    sums_[kWeight] += weight;
    if (outputs_.empty()) return;
    const float* const y = &outputs_[static_cast<size_t>(row * width_)];
    const float value =
        is_class ? static_cast<float>(number) : static_cast<const float*>(targets)[at];
    if (kind_ == OutputKind::kNumbers) {
      const double error = double{y[0]} - value;
      sums_[kAbsolute] += weight * std::abs(error);
      sums_[kSquared] += weight * error * error;
    } else if (kind_ == OutputKind::kSign) {
      AddClass({position, value > 0.5f, y[0] > 0, std::abs(y[0])}, weight);
      AddScore(position, y[0], value, weight);
    } else {
      // As in PyTorch NaN is the largest.
      const auto less = [](float a, float b) { return a < b || (std::isnan(b) && !std::isnan(a)); };
      int64_t above = 0;  // classes that come before the target
      for (int64_t c = 0; c < width_; ++c) {
        above += less(y[number], y[c]) || (c < number && !less(y[c], y[number])) ? 1 : 0;
      }
      sums_[kTop5] += above < kTop ? weight : 0;
      const int64_t predicted = above == 0 ? number : std::max_element(y, y + width_, less) - y;
      AddClass({position, number, predicted, double{y[predicted]} - y[number]}, weight);
      if (width_ == 2) AddScore(position, y[1] - y[0], value, weight);
    }
  }

  void AddScore(int64_t position, float score, float value, float weight) {
    if (places_.empty()) return;
    std::ranges::copy(std::array{score, value, weight},
                      &places_[static_cast<size_t>(position) * 3]);
  }

  void AddClass(Mistake one, double weight) {
    const bool correct = one.target == one.predicted;
    sums_[kCorrect] += correct ? weight : 0;
    if (classes_ == 0) return;
    double* const counts = sums_.data() + kSumCount;
    counts[3 * one.target] += weight;
    counts[3 * one.predicted + 1] += weight;
    counts[3 * one.target + 2] += correct ? weight : 0;
    if (confused_ > 0) counts[3 * classes_ + one.target * confused_ + one.predicted] += weight;
    if (correct || most_mistakes_ == 0) return;
    if (std::isnan(one.margin)) one.margin = HUGE_VAL;
    mistakes_.push_back(one);
    if (mistakes_.size() >= 2 * most_mistakes_) KeepWorst(&mistakes_, most_mistakes_);
  }

  exec::ModelMemory& memory_;
  const DatasetInfo info_;
  const EvaluationOptions& options_;
  SampleTensor target_;
  OutputKind kind_ = OutputKind::kOther;
  size_t weight_ = 0;  // which target is the weight of its sample; 0: none
  int64_t rows_ = 1, width_ = 1, classes_ = 0, confused_ = 0;
  std::vector<std::string> metrics_;
  std::vector<float> outputs_;  // of one forward pass; empty: they are not read
  size_t rank_ = 0, most_mistakes_ = 0;
  std::vector<Mistake> mistakes_;  // of this rank
  size_t counts_ = 0;              // of sums_ without mistakes
  std::vector<double> sums_;       // Sum, ClassCounts, confusion, mistakes of each rank
  std::vector<float> places_;      // for the area: of each sample score, class, weight
};

// Three floats that add up to `value` exactly.
std::array<float, 3> Parts(double value) {
  const auto high = static_cast<float>(value);
  const auto middle = static_cast<float>(value - high);
  return {high, middle, static_cast<float>(value - high - middle)};
}

}  // namespace

// Each rank has places of its own, where the others have zeros: a sum of float32 is exact then.
SumOverRanks SumByTransfers(exec::Executor& executor, const RankInfo& rank) {
  return [&executor, rank](std::span<double> sums, std::span<float> places) -> Status {
    const size_t own = 3 * sums.size();
    std::vector<float> all(own * static_cast<size_t>(rank.world_size));
    for (size_t i = 0; i < sums.size(); ++i) {
      std::ranges::copy(Parts(sums[i]), &all[own * static_cast<size_t>(rank.rank) + 3 * i]);
    }
    ENGINE_RETURN_IF_ERROR(executor.AllReduce(all).WithContext("evaluation"));
    std::ranges::fill(sums, 0.0);
    for (size_t i = 0; i < all.size(); ++i) sums[i % own / 3] += all[i];
    return places.empty() ? Status() : executor.AllReduce(places).WithContext("evaluation");
  };
}

// store keys := "evaluation/" rank | "evaluation/done"     the sums and places of a rank as they lie in
//                                                          memory; the second, of rank 0, is empty
SumOverRanks SumByStore(base::Store& store, const RankInfo& rank) {
  return [&store, rank](std::span<double> sums, std::span<float> places) -> Status {
    const auto key = [](int32_t of) { return "evaluation/" + std::to_string(of); };
    const std::string last = "evaluation/done";
    if (rank.rank != 0) {
      std::string bytes(reinterpret_cast<const char*>(sums.data()), sums.size_bytes());
      bytes.append(reinterpret_cast<const char*>(places.data()), places.size_bytes());
      ENGINE_RETURN_IF_ERROR(store.Set(key(rank.rank), bytes));
      return store.Get(last, launch::kFinishTimeoutMs).status();
    }
    std::vector<double> others(sums.size());
    std::vector<float> other_places(places.size());
    for (int32_t other = 1; other < rank.world_size; ++other) {
      ENGINE_ASSIGN_OR_RETURN(const std::string bytes,
                              store.Get(key(other), launch::kFinishTimeoutMs));
      if (bytes.size() != sums.size_bytes() + places.size_bytes()) {
        return Status::Error(StatusCode::kBadData,
                             "its sums of the evaluation have %zu bytes, and those here %zu: start "
                             "all ranks with the same program and data",
                             bytes.size(), sums.size_bytes() + places.size_bytes())
            .WithRank(other);
      }
      std::memcpy(others.data(), bytes.data(), sums.size_bytes());
      std::memcpy(other_places.data(), bytes.data() + sums.size_bytes(), places.size_bytes());
      std::ranges::transform(sums, others, sums.begin(), std::plus());
      std::ranges::transform(places, other_places, places.begin(), std::plus());
    }
    return store.Set(last, "");
  };
}

LossChoice LossOf(const plugin::PluginChoice& model) {
  LossChoice loss;
  for (const plugin::OwnedOption& option : model.options) {
    if (option.name == "loss" && loss.op.empty()) loss.op = option.string;
    if (option.name != "criterion" || option.layers == nullptr || option.layers->empty()) continue;
    loss.op = option.layers->front().op;
    for (const OptionValue& attribute : option.layers->front().attributes) {
      if (attribute.name == "ignore_index") loss.ignored = attribute.integer;
    }
  }
  return loss;
}

OutputKind KindOf(const graph::Graph& graph, const SampleTensor& target, const LossChoice& loss) {
  const TensorSpec& output = graph.values[graph.logits].spec;
  const int64_t outputs = output.shape.Count() / graph.max_samples, targets = target.shape.Count();
  const auto where = [](bool fits, OutputKind kind) { return fits ? kind : OutputKind::kOther; };
  if (output.batched == 0) return OutputKind::kOther;
  if (loss.op == "binary_cross_entropy") return where(outputs == targets, OutputKind::kSign);
  if (target.classes > 0) return where(outputs == targets * target.classes, OutputKind::kScores);
  return where(outputs == targets && target.dtype == DType::kFloat32, OutputKind::kNumbers);
}

std::vector<std::string> MetricsOf(const graph::Graph& graph, const DatasetInfo& data,
                                   const LossChoice& loss) {
  if (data.targets.empty()) return {};
  const SampleTensor& target = data.targets[0];
  const OutputKind kind = KindOf(graph, target, loss);
  if (kind == OutputKind::kOther) return {};
  if (kind == OutputKind::kNumbers) return {"mae", "rmse"};
  const bool scores = kind == OutputKind::kScores;
  std::vector<std::string> names = {"accuracy"};
  if (scores && target.classes > kTop && target.classes <= kMostScores) {
    names.emplace_back("top5_accuracy");
  }
  if (scores && target.shape.ndim > 0) names.emplace_back("perplexity");
  if ((!scores || target.classes == 2) && target.shape.Count() == 1) names.emplace_back("auc");
  return names;
}

// As many batches on every rank, with or without samples of its own: all of them come to the sum. As
// many samples at once as the memory has room for.
Result<Evaluation> Evaluate(exec::ModelMemory& memory, train::BatchSource& data,
                            const train::BatchRequest& batches, const EvaluationOptions& options,
                            const SumOverRanks& sum) {
  const auto begin = std::chrono::steady_clock::now();
  const DatasetInfo info = data.info();
  int64_t samples = batches.split == Split::kHeldOut ? info.held_out_samples : info.train_samples;
  if (samples == 0) return Evaluation();
  if (options.max_samples > 0) samples = std::min(samples, options.max_samples);
  ENGINE_ASSIGN_OR_RETURN(const std::unique_ptr<train::BatchStream> stream, data.Batches(batches));
  const int64_t at_once = memory.graph().max_samples;
  Meter meter(memory, info, samples, batches, options);
  for (int64_t first = 0; first < samples; first += batches.global_batch) {
    ENGINE_ASSIGN_OR_RETURN(const train::Batch* batch, stream->Next());
    const int64_t position = first + batch->first_sample;
    const int64_t count = std::min(batch->samples, samples - position);
    for (int64_t part = 0; part < count; part += at_once) {
      ENGINE_RETURN_IF_ERROR(
          meter.Add(*batch, part, std::min(count - part, at_once), position + part));
    }
  }
  const std::span<double> sums = meter.Sums();
  if (batches.world_size > 1) ENGINE_RETURN_IF_ERROR(sum(sums, meter.places()));
  Evaluation done = meter.Finish();
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  done.report.seconds = took.count();
  return done;
}

std::string Describe(const train::EvaluationReport& report) {
  std::string text = fmt::format("loss {:.4f}", report.loss);
  for (const auto& [name, value] : report.metrics) {
    const bool share = std::string_view(name).ends_with("accuracy");
    text += share ? fmt::format("  {} {:.2f} %", name, 100 * value)
                  : fmt::format("  {} {:.4g}", name, value);
  }
  return text;
}

}  // namespace engine::run
