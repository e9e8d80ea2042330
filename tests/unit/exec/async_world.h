// The same training on host devices and on accelerators, with ranks as threads, real optimizers,
// hooks and schedulers, and small ops.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/conformance/plugin_under_test.h"
#include "tests/support/async_communicator.h"
#include "tests/support/async_ops.h"
#include "tests/support/memory_host.h"
#include "tests/unit/exec/async_fake_ops.h"
#include "tests/unit/exec/ranks.h"
#include "tests/unit/exec/rig.h"

namespace engine::test {

constexpr int64_t kAsyncWidth = 48;
constexpr int64_t kAsyncSamples = 4;

struct AsyncStep {
  int64_t samples = kAsyncSamples;
  bool flush = false;   // and the statistics, afterwards
  int stop_rank = -1;   // that is asked to stop
  int empty_rank = -1;  // that has no samples
};

struct AsyncOutcome {
  Status status;
  std::vector<float> parameters, momentum;
  std::vector<float> losses, counts, stops;  // by step
  int launches = 0, conversions = 0, too_early = 0;
  int in_place = 0;  // calls of the loss that wrote over their input
};

// What a test is told of a rank.
struct AsyncRank {
  int rank = 0;
  AsyncAccelerator* device = nullptr;
};

struct AsyncWorld {
  int size = 1;
  bool on_device = true;
  int64_t max_delay_us = 20;
  uint32_t seed = 1;
  bool shard = false, record = false;
  bool gathers = false;  // a layer sees all ranks
  int64_t micro_batches = 1;
  int64_t timeout_ms = 20000, device_timeout_ms = 0;  // 0: the same
  float rate = 0.02f, loss_scale = 1;
  std::string slice_bytes = "0", fuse_bytes = "0";
  std::vector<std::string> frozen, recompute;
  const char* loss = "loss";
  std::string scheduler = "fifo_sched";
  std::string optimizer = "sgd";
  OptionValues::Overrides optimizer_options = {{"momentum", "0.9"}, {"weight_decay", "0.01"}};
  std::vector<std::pair<std::string, OptionValues::Overrides>> hooks;
  std::function<std::unique_ptr<GradientHook>(Host&)> first_hook;  // before those
  std::vector<AsyncStep> steps = std::vector<AsyncStep>(6);
  std::function<void(const AsyncRank&, const std::string& op, bool backward)> before_call;
  std::function<void(const AsyncRank&, const Transfer&)> on_submit;
  std::function<std::unique_ptr<Op>(const std::string& name)> own_op;  // null: one of the small ops
  // In the place of the small ops and the model of them: ops of a plugin, and a model.
  std::string op_library;
  OptionValues::Overrides op_library_options;
  std::function<graph::Graph(const plugin::OpFactory& ops, int64_t max_samples)> model;
  int32_t least_target = -2;  // of three
  // In the place of the steps.
  std::function<Status(const AsyncRank&, exec::Executor&)> body;

  template <typename T>
  static std::unique_ptr<T> Load(const std::string& name, Host& host,
                                 const OptionValues::Overrides& options = {}) {
    return CreateFrom<T>(PluginPath(name), options, &host);
  }

  plugin::OpFactory Ops(const AsyncRank& rank, std::atomic<int>* in_place) const {
    return [this, rank, in_place](
               const std::string& name,
               const std::vector<plugin::OwnedOption>& options) -> Result<std::unique_ptr<Op>> {
      if (name == "mean") return std::unique_ptr<Op>(new MeanOp(on_device));
      std::unique_ptr<Op> op = own_op ? own_op(name) : nullptr;
      if (name == "rounded") op = std::make_unique<RoundedScaleOp>(on_device);
      if (name == "loss_in_place") op = std::make_unique<InPlaceLossOp>(in_place);
      if (op == nullptr) {
        ENGINE_ASSIGN_OR_RETURN(op, FakeOps()(name == "scale_first" ? "scale" : name, options));
      }
      if (!on_device) return op;
      AsyncOp::BeforeCall before;
      if (before_call) {
        before = [this, rank, name](bool backward) { before_call(rank, name, backward); };
      }
      return std::unique_ptr<Op>(new AsyncOp(*rank.device, std::move(op), before));
    };
  }

  plugin::OpFactory LibraryOps(const AsyncRank& rank, Host& host,
                               plugin::PluginSet* plugins) const {
    auto library = Load<OpLibrary>(op_library, host, op_library_options);
    if (on_device) library = std::make_unique<AsyncOpLibrary>(*rank.device, std::move(library));
    OpLibrary* const made = library.get();
    plugins->ops.push_back(std::move(library));
    return [made, plugin = Must(PluginUnderTest::Load(PluginPath(op_library)))](
               const std::string& name,
               const std::vector<plugin::OwnedOption>& options) -> Result<std::unique_ptr<Op>> {
      OptionValues::Overrides given;
      for (const plugin::OwnedOption& option : options) {
        std::string text = option.string;
        if (option.type == OptionType::kInt) text = std::to_string(option.integer);
        if (option.type == OptionType::kFloat) text = std::to_string(option.number);
        if (option.type == OptionType::kBool) text = option.integer != 0 ? "true" : "false";
        given[option.name] = text;
      }
      const OptionValues values(plugin.option_specs(), name, given);
      Op* op = nullptr;
      ENGINE_RETURN_IF_ERROR(made->CreateOp(name, values.options(), &op));
      return std::unique_ptr<Op>(op);
    };
  }

  // Ops that can and cannot add to a gradient, a value with three uses, and rounded parameters.
  graph::Graph Model(const plugin::OpFactory& ops) const {
    if (model) return model(ops, kAsyncSamples / micro_batches);
    Net net(ops, kAsyncSamples / micro_batches, {kAsyncWidth});
    ModelValue h = net.Apply("noise", "noise", {Net::kX});
    h = net.Apply("first", "scale_first", {h});
    if (gathers) h = net.Apply("mean", "mean", {h});
    const ModelValue f = net.Apply("a", "scale", {h});
    h = net.Apply("a_add", "add", {h, f});
    const ModelValue g = net.Apply("b", "rounded", {h});
    h = net.Apply("b_add", "add", {h, net.Apply("b_shift", "shift", {g})});
    h = net.Apply("c", "rounded", {h});
    h = net.Apply("d", "shift", {h});
    net.Recompute(recompute);
    graph::Graph graph = net.Finish(h, frozen, loss);
    graph.parameters[1].learning_rate_scale = 0.5f;
    graph.parameters[2].weight_decay_scale = 2;
    return graph;
  }

  exec::ExecutorOptions Options(int rank) const {
    exec::ExecutorOptions options = TestOptions(rank, size, timeout_ms);
    options.seed = 1 + static_cast<uint64_t>(rank);
    options.device_timeout_ms = device_timeout_ms > 0 ? device_timeout_ms : timeout_ms;
    options.shard_optimizer = shard;
    options.micro_batches = micro_batches;
    options.loss_scale = loss_scale;
    options.record_steps = record;
    options.scheduler_name = scheduler;
    options.optimizer_name = optimizer;
    if (first_hook) options.hook_names.emplace_back("first");
    for (const auto& hook : hooks) options.hook_names.push_back(hook.first);
    return options;
  }

  AsyncOutcome RunRank(int rank, Hub& hub, Hub& gather_hub, base::Store& store) const {
    AsyncOutcome outcome;
    HostDevice host_device;
    AsyncAccelerator accelerator(
        {.max_delay_us = max_delay_us, .seed = seed + static_cast<uint32_t>(rank)});
    const AsyncRank self{.rank = rank, .device = &accelerator};
    std::atomic<int> in_place{0};
    std::unique_ptr<Communicator> gatherer;
    if (on_device) {
      gatherer = std::make_unique<AsyncCommunicator>(gather_hub, rank, accelerator);
    } else {
      gatherer = std::make_unique<HubCommunicator>(gather_hub, rank);
    }
    plugin::PluginSet plugins;
    plugins.device = on_device ? static_cast<Device*>(&accelerator) : &host_device;
    MemoryHost host({.rank = rank, .world_size = size}, std::make_shared<MemoryStoreTable>(),
                    plugins.device);
    AsyncCommunicator* communicator = nullptr;
    if (size == 1) {
      plugins.communicator = Load<Communicator>("null", host);
    } else if (on_device) {
      AsyncCommunicator::OnSubmit submitted;
      if (on_submit) submitted = [&](const Transfer& transfer) { on_submit(self, transfer); };
      auto made = std::make_unique<AsyncCommunicator>(hub, rank, accelerator, submitted);
      communicator = made.get();
      plugins.communicator = std::move(made);
    } else {
      plugins.communicator = std::make_unique<HubCommunicator>(hub, rank);
    }
    plugins.optimizer = Load<Optimizer>(optimizer, host, optimizer_options);
    if (first_hook) plugins.hooks.push_back(first_hook(host));
    for (const auto& [name, options] : hooks) {
      if (name == "half_sender") {
        plugins.hooks.push_back(std::make_unique<HalfSender>(on_device));
        continue;
      }
      plugins.hooks.push_back(Load<GradientHook>(name, host, options));
    }
    plugins.scheduler = Load<Scheduler>(
        scheduler, host,
        {{"first_bytes", fuse_bytes}, {"fuse_bytes", fuse_bytes}, {"slice_bytes", slice_bytes}});
    const plugin::OpFactory ops =
        op_library.empty() ? Ops(self, &in_place) : LibraryOps(self, host, &plugins);
    exec::ExecutorOptions options = Options(rank);
    options.replicas = gatherer.get();
    auto made = exec::Executor::Create(Model(ops), plugins, ops, &store, options);
    outcome.status = made.status();
    if (made.ok()) outcome.status = Train(self, **made, &outcome);
    accelerator.Resume();
    if (made.ok()) made->reset();
    outcome.launches = accelerator.launches();
    outcome.conversions = accelerator.conversions();
    outcome.too_early = communicator == nullptr ? 0 : communicator->too_early();
    outcome.in_place = in_place;
    return outcome;
  }

  Status Train(const AsyncRank& self, exec::Executor& executor, AsyncOutcome* outcome) const {
    ENGINE_RETURN_IF_ERROR(executor.memory().InitializeParameters());
    ENGINE_RETURN_IF_ERROR(executor.ShareParameters());
    if (body) return body(self, executor);
    for (uint64_t step = 1; step <= steps.size(); ++step) {
      ENGINE_RETURN_IF_ERROR(TrainStep(self, executor, step, outcome));
    }
    ENGINE_RETURN_IF_ERROR(executor.Flush());
    ENGINE_RETURN_IF_ERROR(TakeRemaining(executor, steps.size(), outcome));
    return Read(executor, outcome);
  }

  // Of one rank and step; rates and samples differ from step to step.
  struct Batch {
    std::vector<float> input = std::vector<float>(kAsyncSamples * kAsyncWidth);
    std::vector<int32_t> target = std::vector<int32_t>(kAsyncSamples * kAsyncWidth);
    exec::StepInput step;
  };
  Batch MakeBatch(int rank, uint64_t step, const AsyncStep& plan) const {
    Batch batch;
    const auto first = static_cast<uint64_t>(rank) * 5 + step * 3;
    for (size_t i = 0; i < batch.input.size(); ++i) {
      batch.input[i] = static_cast<float>((i + first) % 7) / 8 - 0.4f;
      batch.target[i] = static_cast<int32_t>((i + first) % 3) + least_target;
    }
    batch.step = {.input = batch.input.data(),
                  .target = batch.target.data(),
                  .samples = plan.empty_rank == rank ? 0 : plan.samples,
                  .first_sample = rank * kAsyncSamples,
                  .all_samples = plan.samples * (size - (plan.empty_rank < 0 ? 0 : 1)),
                  .step = step,
                  .learning_rate = rate * static_cast<float>(1 + step % 3),
                  .stop = plan.stop_rank == rank};
    return batch;
  }

  // For a body: steps `first` to `last`, without a look at what comes out.
  Status RunSteps(const AsyncRank& self, exec::Executor& executor, uint64_t last = 1,
                  uint64_t first = 1) const {
    for (uint64_t step = first; step <= last; ++step) {
      const Batch batch = MakeBatch(self.rank, step, {});
      ENGINE_RETURN_IF_ERROR(executor.Step(batch.step).status());
    }
    return {};
  }

  Status TrainStep(const AsyncRank& self, exec::Executor& executor, uint64_t step,
                   AsyncOutcome* outcome) const {
    const AsyncStep& plan = steps[step - 1];
    Batch batch = MakeBatch(self.rank, step, plan);
    const auto result = executor.Step(batch.step);
    // What Step was given may change when it has returned.
    batch.input.assign(batch.input.size(), 1e30f);
    if (!result.ok()) return result.status();
    Keep(*result, outcome);
    const bool remained = step > 1 && steps[step - 2].flush;
    EXPECT_EQ(result->step, !on_device ? step : remained ? 0 : step - 1);
    if (!plan.flush) return {};
    ENGINE_RETURN_IF_ERROR(executor.Flush());
    return TakeRemaining(executor, step, outcome);
  }

  Status TakeRemaining(exec::Executor& executor, uint64_t step, AsyncOutcome* outcome) const {
    ENGINE_ASSIGN_OR_RETURN(const exec::StepResult rest, executor.Remaining());
    const bool is_left = on_device && outcome->losses.size() < step;
    EXPECT_EQ(rest.step, is_left ? step : 0);
    Keep(rest, outcome);
    return {};
  }

  static void Keep(const exec::StepResult& result, AsyncOutcome* outcome) {
    if (result.step == 0) return;
    EXPECT_EQ(outcome->losses.size() + 1, result.step);
    outcome->losses.push_back(result.statistics.loss_sum);
    outcome->counts.push_back(result.statistics.count);
    outcome->stops.push_back(result.statistics.stop);
  }

  static Status Read(exec::Executor& executor, AsyncOutcome* outcome) {
    ENGINE_RETURN_IF_ERROR(executor.CollectStates());
    const auto append = [&](const TensorView& view, std::vector<float>* to) -> Status {
      if (view.data == nullptr) return {};
      const size_t begin = to->size();
      to->resize(begin + static_cast<size_t>(view.count()));
      return executor.memory().ReadFloats(view, to->data() + begin);
    };
    for (size_t p = 0; p < executor.memory().graph().parameters.size(); ++p) {
      const auto index = static_cast<int32_t>(p);
      ENGINE_RETURN_IF_ERROR(append(executor.memory().parameter(index), &outcome->parameters));
      ENGINE_RETURN_IF_ERROR(append(executor.updates().state(index, 0), &outcome->momentum));
    }
    return {};
  }

  std::vector<AsyncOutcome> Run() const {
    Hub hub(size, on_device ? max_delay_us : 0, seed);
    Hub gather_hub(size, on_device ? max_delay_us : 0, seed);
    return RunRanks<AsyncOutcome>(
        size, [&](int rank, base::Store& store) { return RunRank(rank, hub, gather_hub, store); });
  }

  // The same on host devices.
  std::vector<AsyncOutcome> RunOnHost() const {
    AsyncWorld host = *this;
    host.on_device = host.record = false;
    return host.Run();
  }
};

inline void ExpectOk(const std::vector<AsyncOutcome>& outcomes) {
  for (const AsyncOutcome& outcome : outcomes) EXPECT_THAT(outcome.status, IsOk());
}

inline void ExpectSameBits(const std::vector<AsyncOutcome>& made,
                           const std::vector<AsyncOutcome>& wanted) {
  ASSERT_EQ(made.size(), wanted.size());
  for (size_t r = 0; r < made.size(); ++r) {
    SCOPED_TRACE("rank " + std::to_string(r));
    ASSERT_THAT(wanted[r].status, IsOk());
    ASSERT_THAT(made[r].status, IsOk());
    ASSERT_FALSE(wanted[r].parameters.empty());
    EXPECT_TRUE(r > 0 || !wanted[r].momentum.empty());
    for (const float value : wanted[r].parameters) ASSERT_TRUE(std::isfinite(value));
    EXPECT_EQ(made[r].losses, wanted[r].losses);
    EXPECT_EQ(made[r].counts, wanted[r].counts);
    EXPECT_EQ(made[r].parameters, wanted[r].parameters);
    EXPECT_EQ(made[r].momentum, wanted[r].momentum);
    EXPECT_EQ(made[r].too_early, 0);
  }
}

}  // namespace engine::test
