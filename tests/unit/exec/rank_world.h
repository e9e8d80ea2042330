// The same training on ranks that are threads of one test, and what each of them has at its end.
#pragma once

#include <functional>
#include <latch>
#include <memory>
#include <vector>

#include "tests/unit/exec/ranks.h"
#include "tests/unit/exec/rig.h"

namespace engine::test {

struct RankResult {
  Status status;
  std::vector<float> losses;              // by step
  std::vector<float> parameters, states;  // as ParametersOf and StatesOf have them
  std::vector<exec::Task> tasks;
};

// By default two ranks that take turns in a hub, with a bucket for each parameter of a chain.
struct RankWorld {
  int size = 2;
  uint64_t steps = 12;
  uint32_t seed = 1;  // of delays
  int64_t timeout_ms = 20000;
  bool shard = false;
  HubMatch match = HubMatch::kSequence;
  BucketStages stages = BucketStages::kAllReduce;  // of a RandomScheduler
  UpdateGate gate = UpdateGate::kSpan;
  std::function<Hooks()> hooks = [] { return Hooks(); };
  int64_t width = 48, samples = 2;
  std::function<graph::Graph()> model = nullptr;                            // null: ChainModel
  std::function<std::unique_ptr<Scheduler>(int rank)> scheduler = nullptr;  // null: in sequence
  std::function<std::unique_ptr<Communicator>(Hub& hub, int rank)> communicator = nullptr;
  std::function<void(Rig& rig)> prepare = nullptr;  // more, before the executor is made
  std::function<StepBatch(int rank, uint64_t step)> batch = nullptr;
  std::function<Status(exec::Executor& executor, int rank)> begin = nullptr;
  std::function<Status(exec::Executor& executor, int rank)> end = nullptr;
  int absent = -1;  // a rank that makes no step
  uint64_t first_step = 1;

  std::vector<RankResult> Run() const {
    Hub hub({.world_size = size, .max_delay_us = 60, .seed = seed, .match = match});
    Hub gathers({.world_size = size, .max_delay_us = 60, .seed = seed});
    std::latch all_done(size);
    return RunRanks<RankResult>(size, [&](int rank, base::Store& store) {
      RankResult result;
      HubCommunicator for_replicas(gathers, rank);
      Rig rig;
      rig.store = &store;
      rig.options = TestOptions(rank, size, timeout_ms);
      rig.options.shard_optimizer = shard;
      rig.options.replicas = &for_replicas;
      rig.plugins.optimizer = std::make_unique<FakeSgd>(gate);
      if (prepare) prepare(rig);
      result.status = Make(rig, hub, rank);
      if (result.status.ok()) result.status = Train(*rig.executor, rank, &result);
      if (communicator) all_done.arrive_and_wait();  // others may still ask the server in this rank
      return result;
    });
  }

 private:
  Status Make(Rig& rig, Hub& hub, int rank) const {
    auto chosen = scheduler ? scheduler(rank) : std::make_unique<RandomScheduler>();
    auto* const random = dynamic_cast<RandomScheduler*>(static_cast<SchedulerBase*>(chosen.get()));
    if (random != nullptr) random->stages = stages;
    auto network = communicator ? communicator(hub, rank)
                                : std::make_unique<HubCommunicator>(
                                      hub, rank, match == HubMatch::kSequence ? 1 : 0);
    // Ops that see all ranks need another one only where transfers take turns.
    if (match == HubMatch::kKey) rig.options.replicas = network.get();
    return rig.Make(model ? model() : ChainModel(width, samples), std::move(chosen),
                    std::move(network), hooks());
  }

  // With a flush on the way.
  Status Train(exec::Executor& executor, int rank, RankResult* result) const {
    if (begin) ENGINE_RETURN_IF_ERROR(begin(executor, rank));
    ENGINE_RETURN_IF_ERROR(executor.ShareParameters());
    for (uint64_t step = first_step; step < first_step + steps && rank != absent; ++step) {
      const StepBatch made = batch ? batch(rank, step) : ChainBatch(samples, width, step, rank);
      const auto done = executor.Step(made.Step(step));
      if (!done.ok()) return done.status();
      result->losses.push_back(done->statistics.loss_sum);
      if (step % 5 != 0) continue;
      ENGINE_RETURN_IF_ERROR(executor.Flush());
      ENGINE_RETURN_IF_ERROR(executor.ShareBuffers());
    }
    ENGINE_RETURN_IF_ERROR(executor.Flush());
    if (executor.updates().asynchronous()) {
      ENGINE_RETURN_IF_ERROR(executor.updates().served()->Meet(executor.transfers()));
    }
    ENGINE_RETURN_IF_ERROR(executor.CollectStates());
    result->parameters = ParametersOf(executor.memory());
    result->states = StatesOf(executor);
    result->tasks = executor.tasks().tasks;
    return end ? end(executor, rank) : Status();
  }
};

}  // namespace engine::test
