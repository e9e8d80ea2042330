// The tasks of one training step and what each waits for, made from a sketch of a model: forward
// and backward over a DAG of layers, tied parameters, local, span and global hooks, and for each
// bucket of the plan the chain that core/exec/task_graph.h states:
//
//   all-reduce:  ALL_REDUCE -> hooks -> UPDATE
//   split:       REDUCE_SCATTER -> ALL_GATHER of gradients -> hooks -> UPDATE
//   sharded:     REDUCE_SCATTER -> hooks and UPDATE of this rank's part -> ALL_GATHER of parameters
//   served:      PUSH -> PULL
//   served rows: PUSH; the next step begins with a PULL
//   one rank:    hooks -> UPDATE, of each parameter
//
// Forward tasks wait for the last tasks of the step before that change what they read.
#pragma once

#include <cstdint>
#include <deque>
#include <random>
#include <string>
#include <vector>

#include "core/exec/task_graph.h"
#include "engine/scheduler.h"
#include "tests/conformance/scheduler/model_sketch.h"

namespace engine::test {

class StepGraph {
 public:
  // Ids are dense but, with `shuffle`, in no relation to sequence numbers.
  StepGraph(const ModelSketch& model, std::mt19937* shuffle);
  StepGraph(const StepGraph&) = delete;  // tasks hold views of names
  StepGraph& operator=(const StepGraph&) = delete;

  ModelInfo model_info() const;
  // Adds what follows from the plan; called once, after Plan.
  void Complete(const std::vector<PlannedBucket>& buckets);

  const exec::TaskGraph& graph() const { return graph_; }
  const std::vector<TaskInfo>& tasks() const { return graph_.infos; }  // by id
  // Whether the task belongs to what ends with kBackwardEnd.
  bool is_head(uint32_t id) const { return !graph_.tasks[id].tail && id != graph_.statistics; }
  // The id of the task with this name; dies if there is none.
  uint32_t Find(const std::string& name) const;

 private:
  struct Draft {
    TaskInfo info;
    int64_t place = 0;  // the draft after which it stands in the order of a single thread
    std::vector<size_t> waits_for, carried;  // drafts of the same step, of the step before
    std::vector<int32_t> reads, completes;   // parameters, as in exec::Task
    bool is_head = false, opens_step = false;
  };
  // What hooks and updates work on at once: a bucket, or a whole parameter.
  struct Group {
    std::string name;
    uint32_t bucket = UINT32_MAX;
    uint32_t needed_by = UINT32_MAX;
    std::vector<size_t> waits_for;  // of its next task
    std::vector<uint32_t> parameters;
  };

  size_t AddTask(TaskKind kind, const std::string& name, std::vector<size_t> waits_for);
  size_t AddTransfer(TransferKind kind, const std::string& name, std::vector<size_t> waits_for,
                     uint32_t bucket = UINT32_MAX, uint64_t size_bytes = 16);
  void AddForwardAndBackward();
  void AddAccumulate(size_t ordinal, const std::vector<size_t>& backward);
  bool IsTable(const PlannedBucket& bucket) const;
  void AddServed(const std::vector<PlannedBucket>& buckets);
  void OpenStep(const PlannedBucket& bucket, size_t push, size_t pull);
  std::vector<size_t> ForwardOf(uint32_t parameter) const;
  std::vector<size_t> AddBuckets(const std::vector<PlannedBucket>& buckets);
  std::vector<Group> MakeGroups(const std::vector<PlannedBucket>& buckets,
                                const std::vector<size_t>& arrives) const;
  void AddTail(const std::vector<PlannedBucket>& buckets, std::vector<Group>& groups);
  void Step(Group& group, TaskKind kind, const std::string& verb);
  void Meet(std::vector<Group>& groups, size_t task);
  std::vector<size_t> LastOfAll(const std::vector<Group>& groups) const;
  void Carry(const std::vector<Group>& groups);
  void AssignIds();

  const ModelSketch model_;
  std::mt19937* shuffle_;
  std::deque<std::string> names_;
  std::vector<Draft> drafts_;
  std::vector<ParameterInfo> parameters_;
  std::vector<size_t> ordinal_of_;      // by parameter
  std::vector<size_t> gradient_ready_;  // by parameter: the last draft before its transfer
  size_t statistics_ = 0;               // draft; 0: none
  exec::TaskGraph graph_;
};

}  // namespace engine::test
