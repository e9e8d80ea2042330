// The tasks of one training step and what each waits for, made from a small random model: forward
// and backward over a DAG of layers, tied parameters, local and global hooks, units as the plan
// says.
#pragma once

#include <cstdint>
#include <deque>
#include <random>
#include <string>
#include <vector>

#include "engine/scheduler.h"

namespace engine::test {

struct SketchLayer {
  std::vector<size_t> inputs;      // earlier layers; empty: reads the batch
  std::vector<size_t> parameters;  // ordinals of SketchParameter
  int32_t priority = 0;
};

// A model as far as a scheduler is concerned.
struct ModelSketch {
  std::vector<SketchLayer> layers;
  std::vector<int64_t> parameter_counts;  // elements, by ordinal
  bool local_hook = false;                // one per gradient, before its transfer
  bool global_hook = false;               // one for all gradients, after the transfers

  static ModelSketch Random(std::mt19937& random);
};

struct PlannedUnit {
  std::vector<UnitSpan> spans;
  int32_t priority = 0;
};

// Keeps a plan. Problem() is empty when the units cover every parameter exactly once.
class PlanRecorder final : public PlanSink {
 public:
  void AddUnit(std::span<const UnitSpan> spans, int32_t priority) noexcept override {
    units_.push_back({{spans.begin(), spans.end()}, priority});
  }
  std::string Problem(std::span<const ParameterInfo> parameters) const;
  const std::vector<PlannedUnit>& units() const { return units_; }

 private:
  std::vector<PlannedUnit> units_;
};

class StepGraph {
 public:
  // Ids are dense but, with `shuffle`, in no relation to sequence numbers.
  StepGraph(const ModelSketch& model, std::mt19937* shuffle);
  StepGraph(const StepGraph&) = delete;  // tasks hold views of names
  StepGraph& operator=(const StepGraph&) = delete;

  ModelInfo model_info() const;
  // Adds the transfers and updates that follow from the plan; called once, after Plan.
  void Complete(const std::vector<PlannedUnit>& units);

  const std::vector<TaskInfo>& tasks() const { return tasks_; }  // by id
  // Which tasks wait for task `id`, ascending.
  const std::vector<uint32_t>& dependents(uint32_t id) const { return dependents_[id]; }
  const std::vector<uint32_t>& dependency_counts() const { return dependency_counts_; }

 private:
  size_t AddTask(TaskKind kind, const std::string& name, int32_t priority,
                 const std::vector<size_t>& waits_for);
  void AddForwardAndBackward(const ModelSketch& model);
  void AddAccumulate(const ModelSketch& model, size_t ordinal, const std::vector<size_t>& backward);

  struct Draft {
    TaskInfo info;
    std::vector<size_t> waits_for;  // drafts
  };
  const bool global_hook_;
  std::mt19937* shuffle_;
  std::deque<std::string> names_;
  std::vector<Draft> drafts_;  // in order of sequence
  std::vector<ParameterInfo> parameters_;
  std::vector<size_t> first_use_;       // by ordinal, a sequence number
  std::vector<size_t> gradient_ready_;  // by ordinal, the draft before the transfer
  size_t loss_ = 0;                     // draft
  std::vector<TaskInfo> tasks_;
  std::vector<std::vector<uint32_t>> dependents_;
  std::vector<uint32_t> dependency_counts_;
};

}  // namespace engine::test
