#include "tests/conformance/scheduler/step_graph.h"

#include <algorithm>
#include <numeric>

namespace engine::test {
namespace {

int64_t Draw(std::mt19937& random, int64_t low, int64_t high) {
  return std::uniform_int_distribution<int64_t>(low, high)(random);
}

}  // namespace

ModelSketch ModelSketch::Random(std::mt19937& random) {
  ModelSketch model;
  model.layers.resize(static_cast<size_t>(Draw(random, 2, 14)));
  const bool uses_priority = Draw(random, 0, 1) == 1;
  for (size_t i = 0; i < model.layers.size(); ++i) {
    SketchLayer& layer = model.layers[i];
    for (int64_t n = Draw(random, 1, 2); i > 0 && n > 0; --n) {
      layer.inputs.push_back(static_cast<size_t>(Draw(random, 0, static_cast<int64_t>(i) - 1)));
    }
    for (int64_t n = Draw(random, 0, 2); n > 0; --n) {
      layer.parameters.push_back(model.parameter_counts.size());
      model.parameter_counts.push_back(int64_t{1} << Draw(random, 0, 18));
    }
    if (Draw(random, 0, 4) == 0 && !model.parameter_counts.empty()) {  // tied
      const auto last = static_cast<int64_t>(model.parameter_counts.size()) - 1;
      layer.parameters.push_back(static_cast<size_t>(Draw(random, 0, last)));
    }
    if (uses_priority) layer.priority = static_cast<int32_t>(Draw(random, -2, 2));
  }
  model.local_hook = Draw(random, 0, 1) == 1;
  model.global_hook = Draw(random, 0, 1) == 1;
  return model;
}

std::string PlanRecorder::Problem(std::span<const ParameterInfo> parameters) const {
  for (const ParameterInfo& parameter : parameters) {
    std::vector<std::pair<int64_t, int64_t>> slices;  // begin, end
    for (const PlannedUnit& unit : units_) {
      for (const UnitSpan& span : unit.spans) {
        if (span.parameter == parameter.id)
          slices.emplace_back(span.offset, span.offset + span.count);
      }
    }
    std::sort(slices.begin(), slices.end());
    int64_t covered = 0;
    for (const auto& [begin, end] : slices) {
      if (begin != covered || end < begin) break;
      covered = end;
    }
    if (slices.empty() || covered != parameter.count || slices.back().second != parameter.count) {
      return "parameter " + std::to_string(parameter.id) + " is not covered exactly once";
    }
  }
  for (const PlannedUnit& unit : units_) {
    if (unit.spans.empty()) return "a unit is empty";
    for (const UnitSpan& span : unit.spans) {
      if (span.parameter >= parameters.size()) return "a unit names an unknown parameter";
    }
  }
  return "";
}

StepGraph::StepGraph(const ModelSketch& model, std::mt19937* shuffle)
    : global_hook_(model.global_hook),
      shuffle_(shuffle),
      first_use_(model.parameter_counts.size()),
      gradient_ready_(model.parameter_counts.size()) {
  AddForwardAndBackward(model);
}

size_t StepGraph::AddTask(TaskKind kind, const std::string& name, int32_t priority,
                          const std::vector<size_t>& waits_for) {
  TaskInfo info;
  info.kind = kind;
  info.lane = kind == TaskKind::kTransfer ? Lane::kIo : Lane::kCompute;
  info.priority = priority;
  info.sequence = static_cast<uint32_t>(drafts_.size());
  info.name = names_.emplace_back(name);
  drafts_.push_back({info, waits_for});
  return drafts_.size() - 1;
}

void StepGraph::AddForwardAndBackward(const ModelSketch& model) {
  const size_t layers = model.layers.size();
  std::vector<std::vector<size_t>> consumers(layers);
  std::vector<size_t> first_user(model.parameter_counts.size(), layers);
  for (size_t i = 0; i < layers; ++i) {
    // Layers are added in order, so the forward draft of a layer is its index.
    AddTask(TaskKind::kForward, "forward" + std::to_string(i), model.layers[i].priority,
            model.layers[i].inputs);
    for (size_t input : model.layers[i].inputs) consumers[input].push_back(i);
    for (size_t p : model.layers[i].parameters) first_user[p] = std::min(first_user[p], i);
  }
  loss_ = layers - 1;
  std::vector<size_t> backward(layers);
  for (size_t i = layers; i-- > 0;) {
    std::vector<size_t> waits_for = {i, loss_};
    for (size_t consumer : consumers[i]) waits_for.push_back(backward[consumer]);
    backward[i] = AddTask(TaskKind::kBackward, "backward" + std::to_string(i),
                          model.layers[i].priority, waits_for);
    for (size_t p = 0; p < first_user.size(); ++p) {
      if (first_user[p] != i) continue;
      first_use_[p] = i;
      AddAccumulate(model, p, backward);
    }
  }
}

void StepGraph::AddAccumulate(const ModelSketch& model, size_t ordinal,
                              const std::vector<size_t>& backward) {
  std::vector<size_t> contributions;
  int32_t priority = 0;
  for (size_t i = 0; i < model.layers.size(); ++i) {
    const SketchLayer& layer = model.layers[i];
    if (std::count(layer.parameters.begin(), layer.parameters.end(), ordinal) == 0) continue;
    contributions.push_back(backward[i]);
    priority = layer.priority;
  }
  const std::string name = std::to_string(ordinal);
  size_t ready = AddTask(TaskKind::kAccumulate, "accumulate" + name, priority, contributions);
  ParameterInfo info;
  info.id = static_cast<uint32_t>(parameters_.size());
  info.first_use = static_cast<uint32_t>(first_use_[ordinal]);
  info.ready = static_cast<uint32_t>(ready);
  info.count = model.parameter_counts[ordinal];
  info.name = names_.emplace_back("parameter" + name);
  if (model.local_hook) ready = AddTask(TaskKind::kHook, "hook" + name, priority, {ready});
  gradient_ready_[parameters_.size()] = ready;
  parameters_.push_back(info);
}

ModelInfo StepGraph::model_info() const {
  ModelInfo info;
  info.parameters = parameters_;
  info.communicator.kinds = Bit(TransferKind::kAllReduce) | Bit(TransferKind::kBarrier);
  info.communicator.dtypes = Bit(DType::kFloat32);
  info.gate = global_hook_ ? UpdateGate::kGlobal : UpdateGate::kSpan;
  info.world_size = 2;
  return info;
}

void StepGraph::Complete(const std::vector<PlannedUnit>& units) {
  const size_t statistics = AddTask(TaskKind::kTransfer, "statistics", 0, {loss_});
  std::vector<std::vector<size_t>> arrives(parameters_.size());  // transfers, by parameter
  std::vector<size_t> transfers = {statistics};
  for (uint32_t u = 0; u < units.size(); ++u) {
    std::vector<size_t> waits_for;
    uint64_t size_bytes = 0;
    for (const UnitSpan& span : units[u].spans) {
      waits_for.push_back(gradient_ready_[span.parameter]);
      size_bytes += static_cast<uint64_t>(span.count) * sizeof(float);
    }
    transfers.push_back(
        AddTask(TaskKind::kTransfer, "unit" + std::to_string(u), units[u].priority, waits_for));
    drafts_.back().info.unit = u;
    drafts_.back().info.size_bytes = size_bytes;
    for (const UnitSpan& span : units[u].spans) arrives[span.parameter].push_back(transfers.back());
  }
  size_t hook = 0;
  if (global_hook_) hook = AddTask(TaskKind::kHook, "global_hook", 0, transfers);
  for (size_t p = 0; p < parameters_.size(); ++p) {
    std::vector<size_t> waits_for = arrives[p];
    waits_for.push_back(global_hook_ ? hook : statistics);
    AddTask(TaskKind::kUpdate, "update" + std::to_string(p), 0, waits_for);
  }

  std::vector<uint32_t> id_of(drafts_.size());
  std::iota(id_of.begin(), id_of.end(), 0);
  if (shuffle_) std::shuffle(id_of.begin(), id_of.end(), *shuffle_);
  tasks_.resize(drafts_.size());
  dependents_.resize(drafts_.size());
  dependency_counts_.resize(drafts_.size());
  for (size_t i = 0; i < drafts_.size(); ++i) {
    std::vector<size_t>& waits_for = drafts_[i].waits_for;
    std::sort(waits_for.begin(), waits_for.end());
    waits_for.erase(std::unique(waits_for.begin(), waits_for.end()), waits_for.end());
    drafts_[i].info.id = id_of[i];
    tasks_[id_of[i]] = drafts_[i].info;
    dependency_counts_[id_of[i]] = static_cast<uint32_t>(waits_for.size());
    for (size_t j : waits_for) dependents_[id_of[j]].push_back(id_of[i]);
  }
  for (std::vector<uint32_t>& list : dependents_) std::sort(list.begin(), list.end());
}

}  // namespace engine::test
