// How well a model predicts samples: its loss, and figures made of its outputs and the targets.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "core/base/rank_context.h"
#include "core/exec/executor.h"
#include "core/plugin/plugin_set.h"
#include "core/train/batch_source.h"
#include "core/train/observer.h"

namespace engine::run {

// Adds up what ranks have counted, exactly and in the order of ranks: `sums`, and `places`, of which
// each element is 0 on all ranks but one. Rank 0 has the result then, others may have it.
using SumOverRanks = std::function<Status(std::span<double> sums, std::span<float> places)>;
SumOverRanks SumByTransfers(exec::Executor& executor, const RankInfo& rank);
// Once in a run; ranks leave it together, and whoever is lost meanwhile ends the run.
SumOverRanks SumByStore(base::Store& store, const RankInfo& rank);

// What the configuration of a model says of its (first) loss (kit/loss_model.h).
struct LossChoice {
  std::string op;        // empty: nothing
  int64_t ignored = -1;  // a class that it does not count
};
LossChoice LossOf(const plugin::PluginChoice& model);

// What the numbers are that a model gives for each element of a target.
enum class OutputKind {
  kScores,   // one for each class
  kSign,     // one, which is above 0 where class 1 is predicted
  kNumbers,  // the prediction
  kOther,
};
OutputKind KindOf(const graph::Graph& graph, const SampleTensor& target, const LossChoice& loss);

// Which figures (see Evaluation) evaluations of such a model have beside the loss. One that is not finite,
// as the area of a single class, is left out.
std::vector<std::string> MetricsOf(const graph::Graph& graph, const DatasetInfo& data,
                                   const LossChoice& loss);

struct EvaluationOptions {
  LossChoice loss;
  int64_t max_samples = 0;  // the first so many of the split; 0: all
  bool by_class = false;    // also Evaluation::classes and ::confusion
  size_t mistakes = 0;      // with by_class, also so many Evaluation::mistakes
};

// Of one class; with weights of samples their sums.
struct ClassCounts {
  double targets = 0, predicted = 0, correct = 0;

  double Precision() const { return predicted > 0 ? correct / predicted : 0; }
  double Recall() const { return targets > 0 ? correct / targets : 0; }
};

// A sample of one target that is taken for another class.
struct Mistake {
  int64_t sample = 0;  // its place in the split
  int64_t target = 0, predicted = 0;
  double margin = 0;  // the score of `predicted` above that of `target`
};

// The figures of EvaluationReport::metrics, of the first target and the model's first output, each
// with the weights of samples if the data has any:
//
//   accuracy, top5_accuracy    classes, and of more than 5. A class is predicted where its score is the
//                              first of the largest, or of a binary loss where the output is above 0
//   perplexity                 exp(loss): of samples of many targets (tokens)
//   auc                        area under the ROC curve: of two classes, or a binary loss
//   mae, rmse                  of targets that are numbers: mean absolute and root mean square error
struct Evaluation {
  train::EvaluationReport report;
  std::vector<ClassCounts> classes;  // at most kMostScores
  std::vector<double>
      confusion;  // [target * classes + predicted]; of at most kMostConfused classes
  std::vector<Mistake> mistakes;  // those of the largest margin, which is the first
};
constexpr int64_t kMostConfused = 256;
// Scores are only read of so many classes: an output for a vocabulary is larger than the parameters.
// Of more, the accuracy is that of the loss.
constexpr int64_t kMostScores = 4096;

// Forward passes over the batches that are requested of `data`, by all ranks of the request together.
// No targets in the report: there are no samples.
Result<Evaluation> Evaluate(exec::ModelMemory& memory, train::BatchSource& data,
                            const train::BatchRequest& batches, const EvaluationOptions& options,
                            const SumOverRanks& sum);

// "loss 0.1234  accuracy 97.10 %  top5_accuracy 99.90 %"
std::string Describe(const train::EvaluationReport& report);

}  // namespace engine::run
