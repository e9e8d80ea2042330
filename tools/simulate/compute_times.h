// How long compute tasks take, learned from what was recorded, for graphs with other buckets.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "core/exec/task_graph.h"
#include "engine/status.h"
#include "tools/trace/timeline.h"

namespace engine::simulate {

// Forward, backward and accumulate tasks are the same under every plan: they are known by name, and
// last as long as their median. Hooks and updates work on the buckets of a plan: what is kept is the
// time per element of each parameter.
class ComputeTimes {
 public:
  // Adds the steps from `first_step` on of `timeline`, which ran `graph`. kBadData when the two do
  // not belong together or nothing was recorded.
  Status Learn(const trace::RankTimeline& timeline, const exec::TaskGraph& graph,
               uint64_t first_step);

  // Nanoseconds by task; of transfers 0. kBadData names a task that was never measured.
  Result<std::vector<int64_t>> For(const exec::TaskGraph& graph) const;

  // How much the steps that were timed differ: (longest - shortest) / median; 0: not known.
  double spread = 0;

  // From the end of a compute task to the begin of one that was ready by then.
  int64_t task_overhead_ns() const { return static_cast<int64_t>(task_overhead_.Value()); }
  // From the end of a step's backward pass and statistics to the begin of the next step.
  int64_t step_overhead_ns() const { return static_cast<int64_t>(step_overhead_.Value()); }

 private:
  struct Mean {
    double sum = 0, weight = 0;
    void Add(double value, double count = 1) {
      sum += value;
      weight += count;
    }
    double Value() const { return weight > 0 ? sum / weight : 0; }
  };
  // Hooks and updates of one kind.
  using Sort = std::tuple<TaskKind, int32_t, exec::HookWork>;
  struct Sorted {
    std::map<int32_t, Mean> per_element;  // by parameter, nanoseconds
    Mean of_any;                          // per element of any parameter
    Mean alone;                           // of tasks without elements: per task
  };

  static Sort SortOf(const exec::Task& task) { return {task.info.kind, task.hook, task.hook_work}; }
  void LearnTask(const exec::Task& task, double median_ns);
  void LearnOverheads(const trace::RankTimeline& timeline, const exec::TaskGraph& graph,
                      uint64_t first_step);
  Result<double> TimeOf(const exec::Task& task) const;

  std::map<std::string, Mean> by_name_;
  std::map<Sort, Sorted> by_sort_;
  Mean task_overhead_, step_overhead_;
};

// Whether it works on the buckets of a plan: reduced hooks and updates, which are told apart by what
// they do, and not by name.
bool IsTail(const exec::Task& task);

}  // namespace engine::simulate
