// What an Executor is made of: graph, layout, tasks, and how ranks agree on the order of transfers.

#include <algorithm>

#include "core/exec/executor.h"

namespace engine {

namespace {

// For queued work to end, before its memory is freed.
constexpr int64_t kEndMs = 10000;

// The first layer whose op sees all ranks, or null.
const Node* FirstThatGathers(const Graph& graph) {
  const auto found = std::find_if(graph.nodes.begin(), graph.nodes.end(), [](const Node& node) {
    return node.signature.uses_replicas != 0;
  });
  return found == graph.nodes.end() ? nullptr : &*found;
}

}  // namespace

bool UsesReplicas(const Graph& graph) {
  return FirstThatGathers(graph) != nullptr;
}

Executor::Executor(PluginSet& plugins, Store* store, const ExecutorOptions& options)
    : plugins_(plugins),
      store_(store),
      options_(options),
      optimizer_traits_(plugins.optimizer->traits()),
      communicator_traits_(plugins.communicator->traits()),
      client_(static_cast<ParameterClient*>(plugins.communicator->Query(kParameterClientId))),
      own_pace_(client_ != nullptr && client_->traits().mode != UpdateMode::kSync),
      recorder_(options.trace_spans) {}

Executor::~Executor() {
  if (follows_) store_->Listen(nullptr);
  recorded_.reset();  // see GiveUp
  if (transfers_ != nullptr && transfers_->in_flight() > 0) {
    plugins_.communicator->Abort(Status::Error(StatusCode::kAborted, "the run was given up"));
  }
  if (accelerator_ != nullptr) {
    (void)Join();
    (void)memory_->stream()->Synchronize(kEndMs);
  }
  {
    // Callbacks may still come; they find a failure and start nothing.
    const std::lock_guard lock(mutex_);
    if (failure_.ok()) failure_ = Status::Error(StatusCode::kAborted, "the run is over");
  }
  if (transfers_ != nullptr) transfers_->Drain();
}

Result<std::unique_ptr<Executor>> Executor::Create(Graph graph, PluginSet& plugins,
                                                   const OpFactory& factory, Store* store,
                                                   const ExecutorOptions& options) {
  std::unique_ptr<Executor> executor(new Executor(plugins, store, options));
  ENGINE_RETURN_IF_ERROR(executor->Plan(std::move(graph), factory));
  return executor;
}

Status Executor::Plan(Graph graph, const OpFactory& factory) {
  Program program = Differentiate(graph);
  UpdateGate gate = optimizer_traits_.gate;
  for (const auto& hook : plugins_.hooks) hook_traits_.push_back(hook->traits());
  ENGINE_RETURN_IF_ERROR(CheckShards(&gate));
  if (served()) ENGINE_RETURN_IF_ERROR(CheckServed(graph, program));
  ENGINE_RETURN_IF_ERROR(CheckWire());
  for (size_t i = 0; i < graph.parameters.size(); ++i) {
    const Parameter& parameter = graph.parameters[i];
    if (parameter.trainable && program.of_parameter[i] == kNone)
      unreached_.push_back(parameter.name);
  }
  std::vector<ParameterInfo> parameters = DescribeParameters(graph, program);
  std::vector<int64_t> row_elements;
  for (ParameterInfo& parameter : parameters) {
    const bool sparse = served() && options_.sparse_pull;
    row_elements.push_back(sparse ? graph.parameters[parameter.id].row_elements : 0);
    parameter.alone = row_elements.back() > 0 ? 1 : 0;
    has_row_tables_ |= parameter.alone != 0;
  }
  const bool on_accelerator = plugins_.device->Query(kAcceleratorId) != nullptr;
  const bool alone = options_.rank.world_size == 1 && !served() && !options_.sends_alone;
  const ModelInfo model{.parameters = parameters,
                        .communicator = communicator_traits_,
                        .gate = gate,
                        .world_size = options_.rank.world_size,
                        .slice_multiple = SliceMultiple(options_.rank.world_size),
                        .sharded = sharded_ ? 1u : 0u,
                        .served = served() ? 1u : 0u,
                        .accelerator = on_accelerator ? 1u : 0u};
  ENGINE_ASSIGN_OR_RETURN(FlatLayout layout,
                          MakeLayout(graph, model, *plugins_.scheduler, options_.scheduler_name));
  ENGINE_ASSIGN_OR_RETURN(
      memory_, ModelMemory::Create(std::move(graph), std::move(program), std::move(layout),
                                   *plugins_.device, factory, options_.seed, MemoryOfTransfers()));
  ENGINE_RETURN_IF_ERROR(memory_->SetLossScale(options_.loss_scale));
  if (options_.micro_batches > 1) ENGINE_RETURN_IF_ERROR(memory_->CheckCanAdd());
  const FlatLayout& flat = memory_->layout();
  OptimizerTraits kept = optimizer_traits_;
  if (served()) kept.state_count = 0;
  ENGINE_ASSIGN_OR_RETURN(OptimizerStates states,
                          OptimizerStates::Create(*memory_, kept, sharded_, options_.rank));
  states_ = std::make_unique<OptimizerStates>(std::move(states));
  ENGINE_RETURN_IF_ERROR(PrepareWire());
  for (auto& hook : plugins_.hooks) {
    ENGINE_RETURN_IF_ERROR(hook->Setup(static_cast<uint32_t>(flat.parameters.size())));
  }
  tasks_ = BuildTaskGraph(memory_->graph(), memory_->program(), memory_->plan(), flat,
                          {.hooks = hook_traits_,
                           .hook_names = options_.hook_names,
                           .gate = optimizer_traits_.gate,
                           .sharded = sharded_,
                           .served = served(),
                           .alone = alone,
                           .accelerator = on_accelerator,
                           .own_pace = own_pace_,
                           .wire = wire_ == nullptr ? nullptr : &wire_->layout(),
                           .row_elements = row_elements,
                           .micro_batches = options_.micro_batches,
                           .rank = options_.rank.rank,
                           .world_size = options_.rank.world_size});
  ENGINE_RETURN_IF_ERROR(PrepareOrder());
  ENGINE_RETURN_IF_ERROR(PrepareReplicas());
  // Tasks of the same spans share their scales: those of hooks and updates of a unit or parameter.
  first_scale_.assign(tasks_.tasks.size(), 0);
  std::vector<int32_t> of_unit(flat.units.size(), kNone),
      of_parameter(flat.parameters.size(), kNone);
  for (const Task& task : tasks_.tasks) {
    if (task.spans.empty() || !task.tail || task.hook_work == HookWork::kUnpack) continue;
    int32_t& first =
        task.info.unit == kNoUnit ? of_parameter[task.spans[0].parameter] : of_unit[task.info.unit];
    if (first == kNone) {
      first = static_cast<int32_t>(gradient_scale_.size());
      gradient_scale_.resize(gradient_scale_.size() + task.spans.size());
    }
    first_scale_[task.info.id] = first;
  }
  ENGINE_RETURN_IF_ERROR(PrepareDevice());
  state_ = std::make_unique<StepState>(tasks_, flat.parameters.size(), *plugins_.scheduler);
  // The host of an accelerator is up to two steps ahead.
  const size_t capacity = tasks_.tasks.size() * (accelerator_ == nullptr ? 1 : 3);
  transfers_ = std::make_unique<TransferLane>(*plugins_.communicator, capacity,
                                              [this] { PumpAside(Lock(mutex_)); });
  ENGINE_RETURN_IF_ERROR(plugins_.scheduler->Begin(tasks_.infos)
                             .WithContext("scheduler '%s'", options_.scheduler_name.c_str()));
  if (follows_) store_->Listen([this](std::string_view text) { OnTicket(text); });
  return served() ? RegisterUnits() : Status();
}

// Memory that the communicator lends for what is sent, or null: then it may lie anywhere.
SharedMemory* Executor::MemoryOfTransfers() const {
  const bool on_host = plugins_.device->Query(kAcceleratorId) == nullptr;
  const bool takes_it = on_host ? std::string_view(plugins_.device->type()) == "cpu"
                                : communicator_traits_.device_memory != 0;
  if (!takes_it || options_.rank.world_size == 1) return nullptr;
  return static_cast<SharedMemory*>(plugins_.communicator->Query(kSharedMemoryId));
}

// What hooks and the optimizer need to see, and whether a sharded run can show it to them.
Status Executor::CheckShards(UpdateGate* gate) {
  sharded_ = options_.shard_optimizer && options_.rank.world_size > 1;
  const auto whole = [](const char* kind, const std::string& name) {
    return Status::Error(StatusCode::kConfig,
                         "%s '%s' needs whole gradients, and train.shard_optimizer gives each rank "
                         "a part of each: set it to false or choose another %s",
                         kind, name.c_str(), kind);
  };
  for (size_t i = 0; i < hook_traits_.size(); ++i) {
    const HookTraits& hook = hook_traits_[i];
    if (hook.scope == HookScope::kGlobal) *gate = UpdateGate::kGlobal;
    if (hook.scope == HookScope::kGlobal && hook.stage == HookStage::kLocal) {
      return Status::Error(
          StatusCode::kPlugin,
          "hook '%s' wants all gradients before any is sent, which no schedule can give; "
          "a global hook must work on reduced gradients",
          options_.hook_names[i].c_str());
    }
    if (sharded_ && hook.stage == HookStage::kReduced && hook.scope == HookScope::kTensor) {
      return whole("hook", options_.hook_names[i]);
    }
  }
  if (sharded_ && optimizer_traits_.gate == UpdateGate::kTensor) {
    return whole("optimizer", options_.optimizer_name);
  }
  return {};
}

Status Executor::PrepareOrder() {
  for (const Task& task : tasks_.tasks) {
    if (task.info.kind != TaskKind::kTransfer) continue;
    if ((communicator_traits_.kinds & Bit(task.info.transfer)) != 0) continue;
    return Status::Error(StatusCode::kConfig,
                         "scheduler '%s'%s needs %s, which communicator '%s' cannot do: choose "
                         "another of the two",
                         options_.scheduler_name.c_str(),
                         sharded_ ? " with train.shard_optimizer" : "", Name(task.info.transfer),
                         options_.communicator_name.c_str());
  }
  // On an accelerator any order follows from the plan: see device_order.h.
  const bool agree = options_.rank.world_size > 1 && communicator_traits_.ordered != 0 &&
                     memory_->accelerator() == nullptr &&
                     plugins_.scheduler->traits().order == TransferOrder::kLeader;
  if (!agree || communicator_traits_.measures_only != 0) return {};
  ENGINE_CHECK(store_ != nullptr, "ranks that agree on an order need a store");
  leads_ = options_.rank.rank == 0;
  follows_ = !leads_;
  tickets_.resize(2 * tasks_.tasks.size());
  return {};
}

Status Executor::PrepareReplicas() {
  const Node* node = FirstThatGathers(memory_->graph());
  if (options_.rank.world_size == 1 || node == nullptr) return {};
  const auto refuse = [&](const char* why) {
    return Status::Error(StatusCode::kConfig,
                         "layer '%s' (%s) looks at the batch of all ranks, but %s: switch that off "
                         "in the layer, or choose another communicator",
                         node->name.c_str(), node->op_name.c_str(), why);
  };
  if (own_pace_) return refuse("in this mode of its communicator no rank waits for another");
  Communicator* communicator = options_.replicas;
  if (communicator == nullptr && communicator_traits_.ordered == 0) {
    communicator = plugins_.communicator.get();
  }
  ENGINE_CHECK(communicator != nullptr, "ops look at all ranks and have no communicator");
  if (!CommunicatorReplicas::CanGather(communicator->traits())) {
    return refuse("its communicator cannot gather from all ranks");
  }
  replicas_ = std::make_unique<CommunicatorReplicas>(*communicator, *plugins_.device, options_.rank,
                                                     tasks_.digest, options_.timeout_ms);
  return {};
}

}  // namespace engine
