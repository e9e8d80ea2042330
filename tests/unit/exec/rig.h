// One rank with fakes for every plugin: a host device, a communicator whose transfers end when the
// test says, a scheduler that picks among ready tasks at random, and plain SGD.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "core/exec/executor.h"
#include "tests/support/expect_status.h"
#include "tests/support/hub_communicator.h"
#include "tests/unit/exec/fake_ops.h"
#include "tests/unit/exec/net.h"
#include "tools/conform/ops/device_memory.h"

namespace engine::test {

using conform::HostDevice;

// All-reduce of `world_size` ranks that all hold the same: multiplies by the number of ranks.
// Transfers end on a thread of its own after `delay`, or at once if that is zero; the one with
// sequence `fail_sequence` fails.
class FakeCommunicator : public CommunicatorBase {
 public:
  explicit FakeCommunicator(int world_size = 1, std::chrono::microseconds delay = {})
      : world_(static_cast<float>(world_size)), delay_(delay) {}
  ~FakeCommunicator() override {
    for (std::thread& thread : threads_) thread.join();
  }
  CommunicatorTraits traits() const noexcept override { return described; }
  Status Submit(const Transfer& transfer, Work** out) noexcept override {
    if (!aborted_.ok()) return aborted_;
    submitted.push_back(transfer);
    if (submitted.size() > works_.size()) works_.emplace_back();
    HubWork& work = works_[submitted.size() - 1];
    *out = &work;
    if (delay_.count() == 0) {
      End(transfer, &work);
    } else {
      threads_.emplace_back([this, transfer, &work] {
        std::this_thread::sleep_for(delay_);
        End(transfer, &work);
      });
    }
    return {};
  }
  void Abort(const Status& reason) noexcept override {
    if (aborted_.ok()) aborted_ = reason;
  }

  std::vector<Transfer> submitted;
  uint64_t fail_sequence = 0;
  CommunicatorTraits described{.kinds = 31, .dtypes = 31};

 private:
  void End(const Transfer& transfer, HubWork* work) const {
    work->MarkStarted();
    if (transfer.kind == TransferKind::kAllReduce) {
      auto* const data = static_cast<float*>(transfer.recv);
      for (int64_t i = 0; i < transfer.count; ++i) data[i] *= world_;
    }
    const bool fails = transfer.sequence == fail_sequence;
    work->End(fails ? Status::Error(StatusCode::kPeerLost, "lost connection to rank 1").WithRank(1)
                    : Status());
  }

  const float world_;
  const std::chrono::microseconds delay_;
  // Some are there from the beginning, for tests that count allocations.
  std::deque<HubWork> works_ = std::deque<HubWork>(256);
  Status aborted_;
  std::vector<std::thread> threads_;
};

// Takes any ready task; with seed 0 the first in sequence. One bucket per parameter.
class RandomScheduler : public SchedulerBase {
 public:
  explicit RandomScheduler(uint64_t seed = 0) : seed_(seed), random_(seed) {}
  SchedulerTraits traits() const noexcept override { return {}; }
  Status Plan(const ModelInfo& model, PlanSink& sink) noexcept override {
    for (const ParameterInfo& parameter : model.parameters) {
      const BucketSpan span{.parameter = parameter.id, .offset = 0, .count = parameter.count};
      sink.AddBucket({&span, 1}, 0, stages);
    }
    return {};
  }
  Status Begin(Array<const TaskInfo> tasks) noexcept override {
    tasks_.assign(tasks.begin(), tasks.end());
    for (auto& ready : ready_) ready.reserve(tasks.size());
    order.reserve(4 * tasks.size());
    return {};
  }
  void On(const SchedulerEvent& event) noexcept override {
    if (event.kind == EventKind::kTaskReady)
      ready_[Index(tasks_[event.task].lane)].push_back(event.task);
    if (event.kind == EventKind::kTaskDone) order.push_back(event.task);
    if (event.kind == EventKind::kError) ready_[0].clear(), ready_[1].clear();
  }
  Action Next(Lane lane) noexcept override {
    std::vector<uint32_t>& ready = ready_[Index(lane)];
    if (ready.empty()) return {};
    size_t pick = 0;
    if (seed_ != 0) {
      pick = random_() % ready.size();
    } else {
      for (size_t i = 1; i < ready.size(); ++i) pick = ready[i] < ready[pick] ? i : pick;
    }
    const uint32_t task = ready[pick];
    ready.erase(ready.begin() + static_cast<int64_t>(pick));
    return {.kind = ActionKind::kRun, .task = task};
  }
  std::vector<uint32_t> order;
  BucketStages stages = BucketStages::kAllReduce;

 protected:
  std::vector<TaskInfo> tasks_;

 private:
  static int Index(Lane lane) { return static_cast<int>(lane); }
  const uint64_t seed_;
  std::mt19937_64 random_;
  std::vector<uint32_t> ready_[2];
};

// The same; rank 0 decides about transfers.
class LeadScheduler : public RandomScheduler {
 public:
  using RandomScheduler::RandomScheduler;
  SchedulerTraits traits() const noexcept override { return {.order = TransferOrder::kLeader}; }
};

class FakeSgd final : public OptimizerBase {
 public:
  explicit FakeSgd(UpdateGate gate = UpdateGate::kSpan, int32_t states = 1)
      : gate_(gate), states_(states) {}
  OptimizerTraits traits() const noexcept override {
    return {.gate = gate_, .state_count = states_, .state_names = {{"count"}, {"sum"}}};
  }
  Status Update(const UpdateCall& call) noexcept override {
    for (int64_t i = 0; i < call.count; ++i) {
      call.value[i] -= call.learning_rate * call.gradient[i] * call.gradient_scale;
      call.states[0][i] += 1;
      if (states_ > 1) call.states[1][i] += call.gradient[i];
    }
    return {};
  }

 private:
  const UpdateGate gate_;
  const int32_t states_;
};

// A hook that looks at nothing: a base of those that do.
class PassiveHook : public GradientHookBase {
 public:
  explicit PassiveHook(const HookTraits& traits) : traits_(traits) {}
  HookTraits traits() const noexcept override { return traits_; }
  Status Setup(uint32_t) noexcept override { return {}; }
  Status BeginStep(uint64_t) noexcept override { return {}; }
  Status Observe(const GradientView&) noexcept override { return {}; }
  Status Apply(const GradientView&) noexcept override { return {}; }
  std::span<float> Observed() noexcept override { return {}; }

 private:
  const HookTraits traits_;
};

// a, b, c, d scale, e shifts.
inline graph::Graph ChainModel(int64_t width, int64_t samples) {
  Net net(FakeOps(), samples, {width});
  ModelValue h = Net::kX;
  for (const char* name : {"a", "b", "c", "d"}) h = net.Apply(name, "scale", {h});
  return net.Finish(net.Apply("e", "shift", {h}));
}

// A parameter in each of a, b, c, d; ab = a + b, cd = c + d, final = ab + cd.
inline graph::Graph FourLeaves(int64_t width, int64_t samples) {
  Net net(FakeOps(), samples, {width});
  std::vector<ModelValue> leaf;
  for (const char* name : {"a", "b", "c", "d"})
    leaf.push_back(net.Apply(name, "constant", {Net::kX}));
  const ModelValue ab = net.Apply("ab", "add", {leaf[0], leaf[1]});
  const ModelValue cd = net.Apply("cd", "add", {leaf[2], leaf[3]});
  return net.Finish(net.Apply("final", "add", {ab, cd}));
}

// What a rank gets for a step: small integers.
struct StepBatch {
  std::vector<float> input;
  std::vector<int32_t> target, rows;  // rows: in the place of the input, if there are any
  int64_t samples = 0, first_sample = 0;
  float rate = 0.25f;

  exec::StepInput Step(uint64_t step) const {
    return {.input = rows.empty() ? static_cast<const void*>(input.data()) : rows.data(),
            .target = target.data(),
            .samples = samples,
            .first_sample = first_sample,
            .step = step,
            .learning_rate = rate};
  }
};

// That tell rank and step.
inline StepBatch ChainBatch(int64_t samples, int64_t width, uint64_t step, int rank) {
  StepBatch batch{.target = std::vector<int32_t>(static_cast<size_t>(samples * width), 1),
                  .samples = samples};
  for (size_t i = 0; i < batch.target.size(); ++i) {
    batch.input.push_back(static_cast<float>((i + step + 3 * static_cast<size_t>(rank)) % 5) - 2);
  }
  return batch;
}

inline exec::ExecutorOptions TestOptions(int rank, int size, int64_t timeout_ms,
                                         const char* communicator = "hub") {
  return {.rank = {.rank = rank, .world_size = size},
          .timeout_ms = timeout_ms,
          .communicator_name = communicator,
          .scheduler_name = "test_sched",
          .optimizer_name = "test_sgd"};
}

// All parameters in graph order, without padding.
inline std::vector<float> ParametersOf(const exec::ModelMemory& memory) {
  std::vector<float> values;
  for (size_t p = 0; p < memory.graph().parameters.size(); ++p) {
    const TensorView view = memory.parameter(static_cast<int32_t>(p));
    values.insert(values.end(), view.f32(), view.f32() + view.count());
  }
  return values;
}

inline void ExpectNear(const std::vector<float>& actual, const std::vector<float>& expected,
                       double tolerance) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    ASSERT_NEAR(actual[i], expected[i], tolerance * std::max(1.0f, std::abs(expected[i]))) << i;
  }
}

// The states of the optimizer, one behind the other, of all parameters that have them here.
inline std::vector<float> StatesOf(const exec::Executor& executor) {
  std::vector<float> values;
  for (int32_t s = 0; s < executor.updates().optimizer().state_count; ++s) {
    for (size_t p = 0; p < executor.memory().graph().parameters.size(); ++p) {
      const TensorView view = executor.updates().state(static_cast<int32_t>(p), s);
      if (view.data != nullptr) values.insert(values.end(), view.f32(), view.f32() + view.count());
    }
  }
  return values;
}

using Hooks = std::vector<std::unique_ptr<GradientHook>>;

template <typename... Made>
Hooks HookList(Made... made) {
  Hooks hooks;
  (hooks.push_back(std::move(made)), ...);
  return hooks;
}

struct Rig {
  exec::ExecutorOptions options = TestOptions(0, 1, 1000);
  plugin::OpFactory ops = FakeOps();
  base::Store* store = nullptr;
  HostDevice device;
  plugin::PluginSet plugins;
  std::unique_ptr<exec::Executor> executor;
  FakeCommunicator* communicator = nullptr;
  RandomScheduler* scheduler = nullptr;

  Rig() {
    options.sends_alone = true;  // one rank has transfers too
    plugins.device = &device;
    plugins.optimizer = std::make_unique<FakeSgd>();
  }

  Status Make(graph::Graph graph, std::unique_ptr<Scheduler> chosen,
              std::unique_ptr<Communicator> network = std::make_unique<FakeCommunicator>(),
              Hooks hooks = {}) {
    communicator = dynamic_cast<FakeCommunicator*>(static_cast<CommunicatorBase*>(network.get()));
    scheduler = dynamic_cast<RandomScheduler*>(static_cast<SchedulerBase*>(chosen.get()));
    plugins.communicator = std::move(network);
    plugins.scheduler = std::move(chosen);
    plugins.hooks = std::move(hooks);
    for (size_t i = 0; i < plugins.hooks.size(); ++i) {
      options.hook_names.push_back("hook" + std::to_string(i));
    }
    ENGINE_ASSIGN_OR_RETURN(executor,
                            exec::Executor::Create(std::move(graph), plugins, ops, store, options));
    return executor->memory().InitializeParameters();
  }

  Status Make(graph::Graph graph, uint64_t seed = 0, std::chrono::microseconds delay = {}) {
    return Make(std::move(graph), std::make_unique<RandomScheduler>(seed),
                std::make_unique<FakeCommunicator>(1, delay));
  }

  // Steps and waits until everything is updated.
  Result<exec::StepResult> Step(const exec::StepInput& input) {
    auto result = executor->Step(input);
    if (!result.ok()) return result;
    ENGINE_RETURN_IF_ERROR(executor->Flush());
    return result;
  }

  std::vector<float> Parameters() const {
    const exec::ModelMemory& memory = executor->memory();
    return {memory.parameters(), memory.parameters() + memory.layout().total_count};
  }
};

// The tasks of one step in the order of their ends.
inline std::vector<trace::Span> TaskSpans(const exec::Executor& executor, uint64_t step) {
  std::vector<trace::Span> spans;
  for (const trace::Span& span : executor.recorded().InOrder()) {
    if (span.kind == trace::SpanKind::kTask && span.step == step) spans.push_back(span);
  }
  return spans;
}

}  // namespace engine::test
