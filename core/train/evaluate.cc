#include "core/train/evaluate.h"

#include <algorithm>
#include <chrono>
#include <memory>

namespace engine::train {

namespace {

struct Sums {
  double loss = 0;
  int64_t count = 0, correct = 0;
};

// As many batches on every rank, with or without samples of its own: all of them come to the
// all-reduce. Those that were made ahead are gone by then. As many samples at once as the memory has
// room for.
Result<Sums> SumUp(exec::ModelMemory& memory, BatchSource& data, const BatchRequest& batches,
                   int64_t max_samples) {
  ENGINE_ASSIGN_OR_RETURN(const std::unique_ptr<BatchStream> stream, data.Batches(batches));
  int64_t steps = stream->steps_per_epoch();
  if (max_samples > 0) {
    steps = std::min(steps, std::max<int64_t>(1, max_samples / batches.global_batch));
  }
  const int64_t at_once = memory.graph().max_samples;
  Sums sums;
  for (int64_t i = 0; i < steps; ++i) {
    ENGINE_ASSIGN_OR_RETURN(const Batch* batch, stream->Next());
    for (int64_t begin = 0; begin < batch->samples; begin += at_once) {
      ENGINE_RETURN_IF_ERROR(memory.SetBatch(batch->input, batch->target,
                                             std::min(batch->samples - begin, at_once),
                                             batch->others, begin));
      ENGINE_RETURN_IF_ERROR(memory.RunForward());
      ENGINE_ASSIGN_OR_RETURN(const exec::StepStatistics statistics, memory.ReadStatistics());
      sums.loss += statistics.loss_sum;
      sums.count += static_cast<int64_t>(statistics.count);
      sums.correct += static_cast<int64_t>(statistics.correct);
    }
  }
  return sums;
}

}  // namespace

Result<EvaluationReport> EvaluateModel(exec::ModelMemory& memory, exec::Executor* executor,
                                       BatchSource& data, const BatchRequest& batches,
                                       int64_t max_samples) {
  const auto begin = std::chrono::steady_clock::now();
  if (data.info().held_out_samples == 0) return EvaluationReport();
  ENGINE_ASSIGN_OR_RETURN(Sums all, SumUp(memory, data, batches, max_samples));
  if (executor != nullptr) {
    // Counts travel as two parts each, so that a float32 sum of them is exact.
    constexpr int64_t kPart = 4096;
    float sums[5] = {static_cast<float>(all.loss), static_cast<float>(all.count / kPart),
                     static_cast<float>(all.count % kPart), static_cast<float>(all.correct / kPart),
                     static_cast<float>(all.correct % kPart)};
    ENGINE_RETURN_IF_ERROR(executor->AllReduce(sums).WithContext("evaluation"));
    all = {.loss = sums[0],
           .count = static_cast<int64_t>(sums[1]) * kPart + static_cast<int64_t>(sums[2]),
           .correct = static_cast<int64_t>(sums[3]) * kPart + static_cast<int64_t>(sums[4])};
  }
  const auto targets = static_cast<double>(std::max<int64_t>(all.count, 1));
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  return EvaluationReport{.loss = all.loss / targets,
                          .accuracy = static_cast<double>(all.correct) / targets,
                          .targets = all.count,
                          .seconds = took.count()};
}

}  // namespace engine::train
