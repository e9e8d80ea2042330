// The order of construction is that of the data: updates and wire say what a scheduler is told, its
// plan makes the layout, the layout the memory, all of that the tasks; the runner, with its threads
// and callbacks, is last, and goes first.
#include "core/exec/executor.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "core/base/clock.h"
#include "engine/ext/accelerator.h"
#include "engine/ext/shared_memory.h"

namespace engine::exec {

using plugin::IsKnown;

const graph::Node* FirstThatGathers(const graph::Graph& graph) {
  const auto found = std::ranges::find_if(
      graph.nodes, [](const graph::Node& node) { return node.signature.uses_replicas != 0; });
  return found == graph.nodes.end() ? nullptr : &*found;
}

Executor::Executor(plugin::PluginSet& plugins, base::Store* store, const ExecutorOptions& options)
    : plugins_(plugins),
      store_(store),
      options_(options),
      on_accelerator_(Query<Accelerator>(*plugins.device) != nullptr),
      updates_(UpdateStrategy::Choose(plugins, options_)),
      submitter_(*plugins.communicator, options.communicator_name, plugins.watch) {
  if (on_accelerator_ || updates_->in_parts() || updates_->served()) options_.keep_states = nullptr;
}

Result<std::unique_ptr<Executor>> Executor::Create(graph::Graph graph, plugin::PluginSet& plugins,
                                                   const plugin::OpFactory& factory,
                                                   base::Store* store,
                                                   const ExecutorOptions& options) {
  std::unique_ptr<Executor> executor(new Executor(plugins, store, options));
  ENGINE_RETURN_IF_ERROR(executor->Plan(std::move(graph), factory));
  return executor;
}

Status Executor::Plan(graph::Graph graph, const plugin::OpFactory& factory) {
  if (options_.record_steps && (!on_accelerator_ || options_.micro_batches > 1)) {
    return Status::Error(StatusCode::kConfig,
                         "train.record_steps is for GPUs, without train.micro_batches: set it to "
                         "false");
  }
  ENGINE_RETURN_IF_ERROR(MakeMemory(std::move(graph), factory));
  for (size_t i = 0; i < plugins_.hooks.size(); ++i) {
    const auto parameters = static_cast<uint32_t>(memory_->layout().parameters.size());
    const std::string name = "hook '" + options_.hook_names[i] + "'";
    const base::OpenCall open(plugins_.watch, name, "Setup");
    ENGINE_RETURN_IF_ERROR(
        plugin::Answer(plugins_.hooks[i]->Setup(parameters)).WithContext("%s", name.c_str()));
  }
  ENGINE_RETURN_IF_ERROR(MakeTasks());
  ENGINE_RETURN_IF_ERROR(MakeReplicas());
  ENGINE_RETURN_IF_ERROR(MakeStep());
  return updates_->Begin(tasks_);
}

// What hooks and the optimizer need to see before an update. What plugins say of themselves is looked
// at here, once.
Result<UpdateGate> Executor::CheckTraits() const {
  const auto check = [](bool known, const char* kind, const std::string& name) {
    return known ? Status()
                 : plugin::BadAnswer(kind, name, "itself in a way that this engine does not know");
  };
  ENGINE_RETURN_IF_ERROR(check(IsKnown(plugins_.scheduler->traits().order, TransferOrder::kLeader),
                               "scheduler", options_.scheduler_name));
  const OptimizerTraits& optimizer = updates_->optimizer();
  ENGINE_RETURN_IF_ERROR(
      check(IsKnown(optimizer.gate, UpdateGate::kGlobal), "optimizer", options_.optimizer_name));
  ENGINE_RETURN_IF_ERROR(CheckStates("optimizer", options_.optimizer_name, optimizer.state_names,
                                     optimizer.state_count));
  UpdateGate gate = options_.keep_states ? UpdateGate::kGlobal : optimizer.gate;
  for (size_t i = 0; i < plugins_.hooks.size(); ++i) {
    const HookTraits hook = plugins_.hooks[i]->traits();
    ENGINE_RETURN_IF_ERROR(
        check(IsKnown(hook.stage, HookStage::kWire) && IsKnown(hook.scope, HookScope::kSpan),
              "hook", options_.hook_names[i]));
    if (hook.scope != HookScope::kGlobal) continue;
    gate = UpdateGate::kGlobal;
    if (hook.stage != HookStage::kLocal) continue;
    return Status::Error(
        StatusCode::kPlugin,
        "hook '%s' wants all gradients before any is sent, which no schedule can give; "
        "a global hook must work on reduced gradients",
        options_.hook_names[i].c_str());
  }
  return gate;
}

Status Executor::MakeMemory(graph::Graph graph, const plugin::OpFactory& factory) {
  ENGINE_ASSIGN_OR_RETURN(const UpdateGate gate, CheckTraits());
  graph::Program program = graph::Differentiate(graph);
  ENGINE_RETURN_IF_ERROR(updates_->Check(graph, program));
  ENGINE_ASSIGN_OR_RETURN(wire_choice_, ChooseWire(plugins_, options_));
  for (size_t i = 0; i < graph.parameters.size(); ++i) {
    const graph::Parameter& parameter = graph.parameters[i];
    const bool reached = program.of_parameter[i] != graph::kNone;
    if (parameter.trainable && !reached) unreached_.push_back(parameter.name);
  }
  std::vector<ParameterInfo> parameters = DescribeParameters(graph, program);
  ModelInfo model{.parameters = parameters,
                  .communicator = plugins_.communicator->traits(),
                  .gate = gate,
                  .world_size = options_.rank.world_size,
                  .slice_multiple = SliceMultiple(options_.rank.world_size),
                  .accelerator = on_accelerator_ ? 1u : 0u};
  updates_->DescribeModel(graph, parameters, &model);
  FlatLayout layout;
  {
    const base::OpenCall open(plugins_.watch, "scheduler '" + options_.scheduler_name + "'",
                              "Plan");
    ENGINE_ASSIGN_OR_RETURN(layout,
                            MakeLayout(graph, model, *plugins_.scheduler, options_.scheduler_name));
  }
  SharedMemory* const shared = MemoryOfTransfers();
  ENGINE_ASSIGN_OR_RETURN(memory_, ModelMemory::Create(std::move(graph), std::move(program),
                                                       std::move(layout), *plugins_.device, factory,
                                                       options_.seed, shared, plugins_.watch));
  ENGINE_RETURN_IF_ERROR(memory_->SetLossScale(options_.loss_scale));
  if (options_.micro_batches > 1) ENGINE_RETURN_IF_ERROR(memory_->calls().CheckCanAdd());
  ENGINE_RETURN_IF_ERROR(updates_->Prepare(*memory_));
  if (wire_choice_.format == nullptr) return {};
  ENGINE_ASSIGN_OR_RETURN(wire_, Wire::Create(wire_choice_, options_, *memory_, shared));
  return {};
}

// Memory that the communicator lends for what is sent, or null: then it may lie anywhere.
SharedMemory* Executor::MemoryOfTransfers() const {
  const bool takes_it = on_accelerator_ ? plugins_.communicator->traits().device_memory != 0
                                        : std::string_view(plugins_.device->type()) == "cpu";
  if (!takes_it || options_.rank.world_size == 1) return nullptr;
  return Query<SharedMemory>(*plugins_.communicator);
}

// kConfig when the communicator cannot carry out one of them.
Status Executor::MakeTasks() {
  TaskGraphOptions options{.run = options_,
                           .gate = updates_->optimizer().gate,
                           .alone = options_.rank.world_size == 1 && !options_.sends_alone,
                           .accelerator = on_accelerator_,
                           .updates_together = options_.keep_states != nullptr,
                           .wire = wire_ == nullptr ? nullptr : &wire_->layout()};
  for (const auto& hook : plugins_.hooks) options.hooks.push_back(hook->traits());
  updates_->DescribeTasks(memory_->layout(), &options);
  tasks_ = BuildTaskGraph(memory_->graph(), memory_->program(), memory_->plan(), memory_->layout(),
                          options);
  const CommunicatorTraits traits = plugins_.communicator->traits();
  for (const Task& task : tasks_.tasks) {
    if (task.info.kind != TaskKind::kTransfer) continue;
    const bool moves_floats = (traits.dtypes & Bit(DType::kFloat32)) != 0;
    if (moves_floats && (traits.kinds & Bit(task.info.transfer)) != 0) continue;
    return Status::Error(
        StatusCode::kConfig,
        "scheduler '%s'%s needs %s of float32, which communicator '%s' cannot do: choose "
        "another of the two",
        options_.scheduler_name.c_str(),
        options_.shard_optimizer ? " with train.shard_optimizer" : "", Name(task.info.transfer),
        options_.communicator_name.c_str());
  }
  return {};
}

// Where nothing moves, ops see this rank alone.
Status Executor::MakeReplicas() {
  const graph::Node* node = FirstThatGathers(memory_->graph());
  const bool moves = options_.rank.world_size > 1 && plugins_.communicator->traits().no_op == 0;
  if (!moves || node == nullptr) return {};
  const auto refuse = [&](const char* why) {
    return Status::Error(StatusCode::kConfig,
                         "layer '%s' (%s) looks at the batch of all ranks, but %s: switch that off "
                         "in the layer, or choose another communicator",
                         node->name.c_str(), node->op_name.c_str(), why);
  };
  if (updates_->asynchronous())
    return refuse("in this mode of its communicator no rank waits for another");
  Communicator* const own = options_.replicas;
  ENGINE_CHECK(own != nullptr, "ops look at all ranks and have no communicator");
  const CommunicatorTraits traits = own->traits();
  if ((traits.kinds & Bit(TransferKind::kAllGather)) == 0 ||
      (traits.dtypes & Bit(DType::kFloat32)) == 0) {
    return refuse("its communicator cannot gather from all ranks");
  }
  if (own != plugins_.communicator.get()) {
    gathers_ = std::make_unique<Submitter>(*own, options_.communicator_name, plugins_.watch);
  }
  replicas_ = std::make_unique<CommunicatorReplicas>(gathers_ != nullptr ? *gathers_ : submitter_,
                                                     on_accelerator_, options_.rank, tasks_.digest,
                                                     options_.timeout_ms);
  return {};
}

// On an accelerator any order follows from the plan: see device_order.h. Where servers update, a push
// ends whatever other ranks do; and what moves nothing waits for nobody.
Status Executor::MakeStep() {
  const bool collective = options_.rank.world_size > 1 && updates_->served() == nullptr &&
                          plugins_.communicator->traits().no_op == 0;
  const bool leads = collective && !on_accelerator_ &&
                     plugins_.scheduler->traits().order == TransferOrder::kLeader;
  order_ = std::make_unique<OrderAgreement>(tasks_, options_.rank, leads, store_);
  const StepParts parts{.plugins = plugins_,
                        .options = options_,
                        .memory = *memory_,
                        .tasks = tasks_,
                        .updates = *updates_,
                        .order = *order_,
                        .submitter = submitter_,
                        .gathers = gathers_.get(),
                        .wire = wire_.get(),
                        .replicas = replicas_.get()};
  if (on_accelerator_) {
    ENGINE_ASSIGN_OR_RETURN(step_, MakeDeviceStep(parts));
  } else {
    step_ = std::make_unique<HostStep>(parts);
  }
  const std::string name = "scheduler '" + options_.scheduler_name + "'";
  const base::OpenCall open(plugins_.watch, name, "Begin");
  ENGINE_RETURN_IF_ERROR(
      plugin::Answer(plugins_.scheduler->Begin(tasks_.infos)).WithContext("%s", name.c_str()));
  runner_ = std::make_unique<StepRunner>(*step_, store_);
  blocking_ = std::make_unique<BlockingTransfers>(submitter_, *runner_, options_);
  return {};
}

bool Executor::End() {
  if (runner_ == nullptr || runner_->End()) return true;
  if (options_.log) {
    options_.log(LogLevel::kWarning,
                 "communicator '" + options_.communicator_name +
                     "' has not ended its transfers in " + std::to_string(options_.drain_ms) +
                     " ms after it was aborted: the memory of the model, to which it may still "
                     "write, stays until this process ends");
  }
  return false;
}

Result<StepResult> Executor::Step(const StepInput& input) {
  const int64_t begin = base::NowNs();
  buffers_differ_ = true;
  if (options_.keep_states) {
    const std::span<const float> buffers = memory_->buffers();
    buffers_before_[input.step % 2].assign(buffers.begin(), buffers.end());
  }
  auto result = step_->Step(input);
  if (!result.ok()) return runner_->GiveUp(result.status());
  const double in_ops = replicas_ == nullptr ? 0 : replicas_->TakeWaitedSeconds();
  if (!on_accelerator_) result->waited_seconds = runner_->waited_seconds() + in_ops;
  step_end_ns_ = base::NowNs();
  result->seconds = static_cast<double>(step_end_ns_ - begin) * 1e-9;
  return result;
}

// Forward tasks of a step that is not whole may have changed buffers.
Result<int64_t> Executor::Salvage() {
  if (salvaged_) return *salvaged_;
  if (!options_.keep_states || !runner_->End()) return -1;
  ENGINE_ASSIGN_OR_RETURN(const StepLoop::Updated updated, runner_->FinishUpdates());
  if (updated.step < updated.begun) {
    std::ranges::copy(buffers_before_[(updated.step + 1) % 2], memory_->buffers().begin());
  }
  return *(salvaged_ = static_cast<int64_t>(updated.step));
}

Result<StepResult> Executor::Remaining() {
  auto read = step_->Remaining();
  if (!read.ok()) return runner_->GiveUp(read.status());
  if (read->step != 0) read->seconds = static_cast<double>(base::NowNs() - step_end_ns_) * 1e-9;
  return read;
}

bool Executor::flushed() const {
  return salvaged_.has_value() || (runner_->TailDone() && updates_->settled() && step_->settled());
}

Status Executor::Flush() {
  ENGINE_RETURN_IF_ERROR(runner_->EndStep());
  if (flushed()) return {};
  const int64_t begin = base::NowNs();
  Status status = runner_->RunTail();
  if (status.ok() && !step_->settled()) status = step_->Settle();
  if (status.ok() && !updates_->settled()) status = updates_->Settle(*blocking_);
  if (!status.ok()) return runner_->GiveUp(std::move(status));
  runner_->EndFlush(begin);
  return {};
}

Status Executor::ShareBuffers() {
  const bool alone = updates_->asynchronous() || options_.rank.world_size == 1;
  if (!buffers_differ_ || alone) return {};
  buffers_differ_ = false;
  return updates_->Broadcast(*blocking_, memory_->layout().buffer_begin);
}

// In memory of the device, which is where a communicator reads and writes on an accelerator.
Status Executor::AllReduce(std::span<float> numbers) {
  Device& device = memory_->device();
  Stream* const stream = memory_->stream();
  ENGINE_ASSIGN_OR_RETURN(sums_, graph::DeviceBuffer::Create(device, numbers.size_bytes(), stream));
  ENGINE_RETURN_IF_ERROR(device.Copy(sums_.data(), numbers.data(), numbers.size_bytes(), stream));
  ENGINE_RETURN_IF_ERROR(blocking_->Run({.kind = TransferKind::kAllReduce,
                                         .send = sums_.data(),
                                         .recv = sums_.data(),
                                         .count = static_cast<int64_t>(numbers.size()),
                                         .stream = stream},
                                        options_.arrival_timeout_ms));
  ENGINE_RETURN_IF_ERROR(device.Copy(numbers.data(), sums_.data(), numbers.size_bytes(), stream));
  return stream->Synchronize(options_.device_timeout_ms);
}

Status Executor::CollectStates() {
  ENGINE_CHECK(flushed(), "states while updates are under way");
  return updates_->CollectStates(*blocking_);
}

}  // namespace engine::exec
