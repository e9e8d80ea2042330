#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "core/base/rank_context.h"
#include "engine/communicator.h"

namespace engine::exec {

struct ExecutorOptions {
  RankInfo rank;
  uint64_t seed = 1;
  int64_t timeout_ms = 30000;  // of a transfer
  // Of a task, and of an accelerator to come to what was queued: it may have two steps before it,
  // which take as long as they take, so this only ends a run whose op or device hangs.
  int64_t device_timeout_ms = 10 * 60 * 1000;
  // For ranks to come to where they wait for each other, after work of which nobody knows how long
  // it takes: one that is lost is found by the launcher, not by this.
  int64_t arrival_timeout_ms = 24 * 60 * 60 * 1000;
  // Of an aborted communicator, which has promised a second, to end what is under way.
  int64_t drain_ms = 10000;
  bool shard_optimizer = false;
  // When servers update: rows of tables (RowElements) that a batch does not read are
  // neither pushed nor pulled.
  bool sparse_pull = false;
  // Parts in which a rank computes its samples of a step, one after the other; at least 1. The
  // graph is one for the samples of a part.
  int64_t micro_batches = 1;
  // Gradients are computed, seen by local hooks, and sent as this many times themselves; what comes
  // after is told by the scale of each.
  float loss_scale = 1;
  // With one rank nothing travels, so transfers and a hook of HookStage::kWire are left out, but
  // for this: then a step has the tasks of one rank of several, which tells how long they take.
  bool sends_alone = false;
  // For ops that see all ranks while they run (FirstThatGathers), in a world of several: one that
  // nothing else is submitted to, or the one of the run if its transfers need no order. Borrowed.
  Communicator* replicas = nullptr;
  // On an accelerator without micro-batches: the work of a step is recorded once and then replayed
  // (CUDA graphs), for batches of as many samples.
  bool record_steps = false;
  // Where set, Executor::Salvage shall find the parameters of one step, on a host whose ranks update:
  // no update is made before all gradients of its step are there; and this is called where the
  // backward pass of a step begins, when what hooks keep is what all steps before it have left.
  std::function<Status(uint64_t step)> keep_states = nullptr;
  size_t trace_spans = 1 << 16;
  base::LogSink log = nullptr;  // null: nobody reads it
  std::string communicator_name, scheduler_name, optimizer_name;
  std::vector<std::string> hook_names;
};

}  // namespace engine::exec
