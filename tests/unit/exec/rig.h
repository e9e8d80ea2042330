// One rank with fakes for every plugin: a host device, a communicator whose transfers end when the
// test says, a scheduler that picks among ready tasks at random, and plain SGD.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "core/exec/executor.h"
#include "tests/unit/exec/fake_ops.h"

namespace engine::test {

class HostStream final : public Stream {
 public:
  Status Record(Event*) noexcept override { return {}; }
  Status Wait(Event*) noexcept override { return {}; }
  Status Synchronize(int64_t) noexcept override { return {}; }
  void* native() noexcept override { return nullptr; }
};

class HostDevice : public Device {
 public:
  const char* type() const noexcept override { return "cpu"; }
  Status Allocate(size_t size_bytes, void** out) noexcept override {
    *out = std::aligned_alloc(64, (size_bytes + 63) / 64 * 64);
    return {};
  }
  void Free(void* memory) noexcept override { std::free(memory); }
  Status Copy(void* target, const void* source, size_t size_bytes, Stream*) noexcept override {
    std::memcpy(target, source, size_bytes);
    return {};
  }
  Status Zero(void* target, size_t size_bytes, Stream*) noexcept override {
    std::memset(target, 0, size_bytes);
    return {};
  }
  Status CreateStream(Stream** out) noexcept override {
    *out = new HostStream;
    return {};
  }
  Status CreateEvent(Event** out) noexcept override {
    *out = nullptr;
    return Status::Error(StatusCode::kUnsupported, "no events");
  }
};

// All-reduce of `world_size` ranks that all hold the same: multiplies by the number of ranks.
// Transfers end on a thread of its own after `delay`, or at once if that is zero; the one with
// sequence `fail_sequence` fails.
class FakeCommunicator final : public Communicator {
 public:
  explicit FakeCommunicator(int world_size = 1, std::chrono::microseconds delay = {})
      : world_(world_size), delay_(delay) {
    works_.resize(256);
  }
  ~FakeCommunicator() override {
    for (std::thread& thread : threads_) thread.join();
  }
  CommunicatorTraits traits() const noexcept override {
    return {.kinds = 31, .dtypes = 31, .device_memory = device_memory};
  }
  Status Submit(const Transfer& transfer, Work** out) noexcept override {
    if (!aborted_.ok()) return aborted_;
    submitted.push_back(transfer);
    FakeWork& work = works_[next_++ % works_.size()];
    work.Start(transfer, world_, transfer.sequence == fail_sequence);
    if (delay_.count() == 0) {
      work.End();
    } else {
      threads_.emplace_back([this, &work] {
        std::this_thread::sleep_for(delay_);
        work.End();
      });
    }
    *out = &work;
    return {};
  }
  void Abort(const Status& reason) noexcept override {
    if (aborted_.ok()) aborted_ = reason;
  }

  std::vector<Transfer> submitted;
  uint64_t fail_sequence = 0;
  uint32_t device_memory = 0;

 private:
  class FakeWork final : public Work {
   public:
    void Start(const Transfer& transfer, int world, bool fails) {
      std::lock_guard lock(mutex_);
      transfer_ = transfer;
      world_ = world;
      fails_ = fails;
      done_ = false;
      callback_ = nullptr;
    }
    void End() {
      std::unique_lock lock(mutex_);
      if (transfer_.kind == TransferKind::kAllReduce) {
        auto* data = static_cast<float*>(transfer_.recv);
        for (int64_t i = 0; i < transfer_.count; ++i) data[i] *= static_cast<float>(world_);
      }
      done_ = true;
      const auto callback = callback_;
      lock.unlock();
      if (callback != nullptr) callback(context_);
    }
    int64_t started_ns() const noexcept override { return 0; }
    WorkState state() const noexcept override { return WorkState::kPending; }
    Status WaitHost(int64_t) noexcept override {
      std::lock_guard lock(mutex_);
      if (!done_) return Status::Error(StatusCode::kTimeout, "pending");
      return fails_ ? Status::Error(StatusCode::kPeerLost, "lost connection to rank 1").WithRank(1)
                    : Status();
    }
    Status WaitStream(Stream*) noexcept override { return {}; }
    void OnDone(void (*callback)(void*), void* context) noexcept override {
      std::unique_lock lock(mutex_);
      callback_ = callback;
      context_ = context;
      if (!done_) return;
      lock.unlock();
      callback(context);
    }
    void Release() noexcept override {}

   private:
    std::mutex mutex_;
    Transfer transfer_;
    int world_ = 1;
    bool fails_ = false, done_ = false;
    void (*callback_)(void*) = nullptr;
    void* context_ = nullptr;
  };

  const int world_;
  const std::chrono::microseconds delay_;
  std::deque<FakeWork> works_;
  size_t next_ = 0;
  Status aborted_;
  std::vector<std::thread> threads_;
};

// Takes any ready task; with seed 0 the first in sequence. One unit per parameter.
class RandomScheduler : public Scheduler {
 public:
  explicit RandomScheduler(uint64_t seed = 0) : seed_(seed), random_(seed) {}
  SchedulerTraits traits() const noexcept override { return {}; }
  Status Plan(const ModelInfo& model, PlanSink& sink) noexcept override {
    for (const ParameterInfo& parameter : model.parameters) {
      const UnitSpan span{.parameter = parameter.id, .offset = 0, .count = parameter.count};
      sink.AddUnit({&span, 1}, 0, stages);
    }
    return {};
  }
  Status Begin(std::span<const TaskInfo> tasks) noexcept override {
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
  UnitStages stages = UnitStages::kAllReduce;

 private:
  static int Index(Lane lane) { return static_cast<int>(lane); }
  const uint64_t seed_;
  std::mt19937_64 random_;
  std::vector<TaskInfo> tasks_;
  std::vector<uint32_t> ready_[2];
};

class FakeSgd final : public Optimizer {
 public:
  OptimizerTraits traits() const noexcept override {
    return {.state_count = 1, .state_names = {{"count"}}};
  }
  Status Update(const UpdateCall& call) noexcept override {
    for (int64_t i = 0; i < call.count; ++i) {
      call.value[i] -= call.learning_rate * call.gradient[i] * call.gradient_scale;
      call.states[0][i] += 1;
    }
    return {};
  }
};

// A hook that looks at nothing: a base of those that do.
class PassiveHook : public GradientHook {
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

// `logits` with a target for each element, and the loss.
inline graph::Graph FinishedModel(graph::GraphBuilder& builder, graph::ValueId input,
                                  graph::ValueId logits, int64_t width,
                                  const std::vector<std::string>& frozen = {}) {
  const graph::ValueId target = builder.Input("target", {width}, DType::kInt32);
  const auto loss = builder.Apply("loss", "loss", {logits, target});
  EXPECT_TRUE(loss.ok()) << loss.status().message();
  auto graph = builder.Finish(input, target, logits, *loss, frozen);
  EXPECT_TRUE(graph.ok()) << graph.status().message();
  return std::move(*graph);
}

// a, b, c, d scale, e shifts.
inline graph::Graph ChainModel(int64_t width, int64_t samples) {
  graph::GraphBuilder builder(FakeOps(), samples);
  const graph::ValueId x = builder.Input("x", {width}, DType::kFloat32);
  graph::ValueId h = x;
  for (const char* name : {"a", "b", "c", "d"}) h = *builder.Apply(name, "scale", {h});
  return FinishedModel(builder, x, *builder.Apply("e", "shift", {h}), width);
}

// Small integers that tell rank and step.
struct ChainBatch {
  std::vector<float> input;
  std::vector<int32_t> target;

  ChainBatch(int64_t elements, uint64_t step, int rank) : target(static_cast<size_t>(elements), 1) {
    for (size_t i = 0; i < target.size(); ++i) {
      input.push_back(static_cast<float>((i + step + 3 * static_cast<size_t>(rank)) % 5) - 2);
    }
  }
  exec::StepInput Step(uint64_t step, int64_t samples) const {
    return {.input = input.data(),
            .target = target.data(),
            .samples = samples,
            .step = step,
            .learning_rate = 0.25f};
  }
};

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

struct Rig {
  int64_t micro_batches = 1;
  bool sends_alone = true;  // one rank has transfers too
  HostDevice device;
  plugin::PluginSet plugins;
  std::unique_ptr<exec::Executor> executor;
  FakeCommunicator* communicator = nullptr;
  RandomScheduler* scheduler = nullptr;

  Status Make(graph::Graph graph, std::unique_ptr<Scheduler> chosen,
              std::unique_ptr<FakeCommunicator> network,
              std::vector<std::unique_ptr<GradientHook>> hooks = {}, int world_size = 1) {
    if (plugins.device == nullptr) plugins.device = &device;
    communicator = network.get();
    scheduler = dynamic_cast<RandomScheduler*>(chosen.get());
    plugins.communicator = std::move(network);
    plugins.scheduler = std::move(chosen);
    plugins.optimizer = std::make_unique<FakeSgd>();
    plugins.hooks = std::move(hooks);
    exec::ExecutorOptions options = TestOptions(0, world_size, 1000);
    options.micro_batches = micro_batches;
    options.sends_alone = sends_alone;
    for (size_t i = 0; i < plugins.hooks.size(); ++i)
      options.hook_names.push_back("hook" + std::to_string(i));
    auto made = exec::Executor::Create(std::move(graph), plugins, FakeOps(), nullptr, options);
    if (!made.ok()) return made.status();
    executor = std::move(*made);
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
  for (const trace::Span& span : executor.Timeline().spans) {
    if (span.kind == trace::SpanKind::kTask && span.step == step) spans.push_back(span);
  }
  return spans;
}

inline std::vector<std::string> NamesOf(const exec::Executor& executor,
                                        const std::vector<uint32_t>& order) {
  std::vector<std::string> names;
  for (uint32_t task : order) names.push_back(executor.tasks().tasks[task].name);
  return names;
}

}  // namespace engine::test
