// The tasks of one training step of a model that is no more than a sketch: forward and backward
// over a DAG of layers, tied parameters, local, span and global hooks, with updates on ranks, in
// parts or at servers. A scheduler plans it, and the engine's own BuildTaskGraph makes the tasks of
// that plan (core/exec/task_graph.h says which), but with short names: "forward0" of layer 0,
// "push1" of bucket 1.
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "core/exec/task_graph.h"
#include "engine/scheduler.h"
#include "tools/conform/scheduler/model_sketch.h"

namespace engine::conform {

class StepGraph {
 public:
  explicit StepGraph(const ModelSketch& model);
  StepGraph(const StepGraph&) = delete;  // tasks hold views of names

  ModelInfo model_info() const;
  // Called once. Ids are dense but, with `shuffle`, in no relation to sequence numbers. The error
  // of a plan that the engine refuses.
  Status Plan(Scheduler& scheduler, std::mt19937* shuffle);

  const std::vector<exec::BucketLayout>& buckets() const { return layout_.buckets; }
  const exec::TaskGraph& graph() const { return graph_; }
  const std::vector<TaskInfo>& tasks() const { return graph_.infos; }  // by id
  // Whether the task belongs to what ends with kBackwardEnd.
  bool is_head(uint32_t id) const { return !graph_.tasks[id].tail && id != graph_.statistics; }
  // The id of the task with this name; dies if there is none.
  uint32_t Find(const std::string& name) const;

 private:
  void Rename();
  void Shuffle(std::mt19937& random);

  const ModelSketch sketch_;
  graph::Graph model_;
  graph::Program program_;
  std::vector<ParameterInfo> parameters_;
  exec::FlatLayout layout_;
  exec::TaskGraph graph_;
};

}  // namespace engine::conform
