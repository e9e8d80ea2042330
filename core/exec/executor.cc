#include "core/exec/executor.h"

#include <algorithm>

namespace engine {
namespace {

// Beyond the deadline of a transfer, for a communicator that does not keep it.
constexpr int64_t kGraceMs = 5000;

int64_t NowNs() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

}  // namespace

Executor::Executor(PluginSet& plugins, const ExecutorOptions& options)
    : plugins_(plugins), options_(options), optimizer_traits_(plugins.optimizer->traits()) {}

Executor::~Executor() {
  if (transfers_ != nullptr && transfers_->in_flight() > 0) {
    plugins_.communicator->Abort(Status::Error(StatusCode::kAborted, "the step was given up"));
  }
}

Result<std::unique_ptr<Executor>> Executor::Create(Graph graph, PluginSet& plugins,
                                                   const OpFactory& factory,
                                                   const ExecutorOptions& options) {
  std::unique_ptr<Executor> executor(new Executor(plugins, options));
  ENGINE_RETURN_IF_ERROR(executor->Plan(std::move(graph), factory));
  return executor;
}

Status Executor::Plan(Graph graph, const OpFactory& factory) {
  Program program = Differentiate(graph);
  UpdateGate gate = optimizer_traits_.gate;
  for (const auto& hook : plugins_.hooks) {
    hook_traits_.push_back(hook->traits());
    if (hook_traits_.back().scope == HookScope::kGlobal) gate = UpdateGate::kGlobal;
  }
  for (size_t i = 0; i < hook_traits_.size(); ++i) {
    if (hook_traits_[i].scope == HookScope::kGlobal && hook_traits_[i].stage == HookStage::kLocal) {
      return Status::Error(
          StatusCode::kPlugin,
          "hook '%s' wants all gradients before any is sent, which no schedule can give; "
          "a global hook must work on reduced gradients",
          options_.hook_names[i].c_str());
    }
  }
  for (size_t i = 0; i < graph.parameters.size(); ++i) {
    const Parameter& parameter = graph.parameters[i];
    if (parameter.trainable && program.of_parameter[i] == kNone)
      unreached_.push_back(parameter.name);
  }
  const std::vector<ParameterInfo> parameters = DescribeParameters(graph, program);
  const ModelInfo model{.parameters = parameters,
                        .communicator = plugins_.communicator->traits(),
                        .gate = gate,
                        .world_size = options_.rank.world_size};
  ENGINE_ASSIGN_OR_RETURN(FlatLayout layout,
                          MakeLayout(graph, model, *plugins_.scheduler, options_.scheduler_name));
  ENGINE_ASSIGN_OR_RETURN(
      memory_, ModelMemory::Create(std::move(graph), std::move(program), std::move(layout),
                                   *plugins_.device, factory, options_.seed));
  const FlatLayout& flat = memory_->layout();
  for (int32_t i = 0; i < optimizer_traits_.state_count; ++i) {
    auto state = DeviceBuffer::Create(*plugins_.device, flat.trainable_count * sizeof(float),
                                      memory_->stream());
    if (!state.ok()) return state.status().WithContext("memory for the state of the optimizer");
    states_.push_back(std::move(*state));
  }
  for (auto& hook : plugins_.hooks) {
    ENGINE_RETURN_IF_ERROR(hook->Setup(static_cast<uint32_t>(flat.parameters.size())));
  }
  tasks_ = BuildTaskGraph(memory_->graph(), memory_->program(), memory_->plan(), flat, hook_traits_,
                          options_.hook_names);
  const size_t count = tasks_.tasks.size();
  transfers_ = std::make_unique<TransferLane>(*plugins_.communicator, count);
  state_.resize(count);
  waits_for_.resize(count);
  begin_ns_.resize(count);
  records_.reserve(count);
  gradient_scale_.resize(flat.parameters.size());
  return plugins_.scheduler->Begin(tasks_.infos)
      .WithContext("scheduler '%s'", options_.scheduler_name.c_str());
}

TensorView Executor::optimizer_state(int32_t parameter, int32_t index) const {
  if (memory_->program().of_parameter[parameter] == kNone) return {};
  return {.data = states_[index].f32() + memory_->layout().offset[parameter],
          .shape = memory_->graph().parameters[parameter].shape,
          .dtype = DType::kFloat32};
}

Result<StepResult> Executor::Step(const StepInput& input) {
  StepResult result;
  const int64_t begin = NowNs();
  Status status = BeginStep(input);
  if (status.ok()) status = RunTasks(input, &result);
  if (!status.ok()) return GiveUp(std::move(status));
  plugins_.scheduler->On({.kind = EventKind::kStepEnd, .step = input.step});
  result.statistics = *memory_->statistics();
  result.seconds = static_cast<double>(NowNs() - begin) * 1e-9;
  return result;
}

Status Executor::BeginStep(const StepInput& input) {
  ENGINE_RETURN_IF_ERROR(memory_->SetBatch(input.input, input.target, input.samples));
  memory_->statistics()->stop = input.stop ? 1.0f : 0.0f;
  for (auto& hook : plugins_.hooks) ENGINE_RETURN_IF_ERROR(hook->BeginStep(input.step));
  records_.clear();
  ready_compute_ = 0;
  plugins_.scheduler->On({.kind = EventKind::kStepBegin, .step = input.step});
  for (const Task& task : tasks_.tasks) {
    state_[task.info.id] = TaskState::kWaiting;
    waits_for_[task.info.id] = task.dependency_count;
  }
  for (const Task& task : tasks_.tasks) {
    if (task.dependency_count == 0) MakeReady(task.info.id);
  }
  return {};
}

// One turn: learn what has ended, start what may start, run one compute task or wait.
Status Executor::RunTasks(const StepInput& input, StepResult* result) {
  while (records_.size() < tasks_.tasks.size()) {
    ENGINE_RETURN_IF_ERROR(TakeCompletions());
    ENGINE_RETURN_IF_ERROR(StartTransfers());
    const Action action = plugins_.scheduler->Next(Lane::kCompute);
    if (action.kind == ActionKind::kHold) {
      if (records_.size() < tasks_.tasks.size()) ENGINE_RETURN_IF_ERROR(WaitForTransfer(result));
      continue;
    }
    ENGINE_RETURN_IF_ERROR(CheckAction(action, Lane::kCompute));
    const Task& task = tasks_.tasks[action.task];
    --ready_compute_;
    state_[action.task] = TaskState::kStarted;
    begin_ns_[action.task] = NowNs();
    ENGINE_RETURN_IF_ERROR(RunTask(task, input));
    Finish(action.task);
  }
  return {};
}

void Executor::MakeReady(uint32_t task) {
  state_[task] = TaskState::kReady;
  if (tasks_.tasks[task].info.lane == Lane::kCompute) ++ready_compute_;
  plugins_.scheduler->On({.kind = EventKind::kTaskReady, .task = task});
}

void Executor::Finish(uint32_t task) {
  state_[task] = TaskState::kDone;
  records_.push_back({.task = task, .begin_ns = begin_ns_[task], .end_ns = NowNs()});
  plugins_.scheduler->On({.kind = EventKind::kTaskDone, .task = task});
  for (uint32_t next : tasks_.tasks[task].successors) {
    if (--waits_for_[next] == 0) MakeReady(next);
  }
}

Status Executor::CheckAction(const Action& action, Lane lane) {
  const bool known = action.task < tasks_.tasks.size();
  if (known && state_[action.task] == TaskState::kReady &&
      tasks_.tasks[action.task].info.lane == lane) {
    return {};
  }
  return Status::Error(
      StatusCode::kPlugin, "scheduler '%s' asked for task %u (%s), which is not ready",
      options_.scheduler_name.c_str(), action.task,
      known ? tasks_.tasks[action.task].name.c_str() : "there is none of this number");
}

Status Executor::TakeCompletions() {
  TransferLane::Completion completion;
  while (transfers_->Take(&completion)) {
    if (!completion.status.ok()) {
      return completion.status.WithContext("%s", tasks_.tasks[completion.task].name.c_str());
    }
    if (tasks_.tasks[completion.task].info.unit == kStatisticsUnit) ScaleToMean();
    Finish(completion.task);
  }
  return {};
}

// A transferred gradient is a sum over all samples of the step; hooks and optimizers see the mean.
void Executor::ScaleToMean() {
  const float count = std::max(memory_->statistics()->count, 1.0f);
  std::fill(gradient_scale_.begin(), gradient_scale_.end(), 1 / count);
}

Status Executor::StartTransfers() {
  for (;;) {
    const Action action = plugins_.scheduler->Next(Lane::kIo);
    if (action.kind == ActionKind::kHold) return {};
    ENGINE_RETURN_IF_ERROR(CheckAction(action, Lane::kIo));
    const Task& task = tasks_.tasks[action.task];
    state_[action.task] = TaskState::kStarted;
    begin_ns_[action.task] = NowNs();
    ENGINE_RETURN_IF_ERROR(
        transfers_->Start(action.task, MakeTransfer(task)).WithContext("%s", task.name.c_str()));
  }
}

Transfer Executor::MakeTransfer(const Task& task) {
  Transfer transfer{.kind = TransferKind::kAllReduce,
                    .key = task.info.id + uint64_t{1},
                    .priority = task.info.priority,
                    .sequence = ++sequence_,
                    .stream = memory_->stream(),
                    .timeout_ms = options_.timeout_ms};
  if (task.info.unit == kStatisticsUnit) {
    transfer.recv = memory_->statistics();
    transfer.count = sizeof(StepStatistics) / sizeof(float);
  } else {
    const UnitLayout& unit = memory_->layout().units[task.info.unit];
    transfer.recv = memory_->gradients() + unit.offset;
    transfer.count = unit.count;
  }
  transfer.send = transfer.recv;
  return transfer;
}

// The compute lane has nothing to run. Transfers have deadlines of their own; the one here only
// catches a communicator that breaks its contract.
Status Executor::WaitForTransfer(StepResult* result) {
  if (transfers_->in_flight() == 0) {
    for (const Task& task : tasks_.tasks) {
      if (state_[task.info.id] != TaskState::kReady) continue;
      return Status::Error(StatusCode::kTimeout,
                           "stalled: scheduler '%s' holds '%s' although nothing is under way",
                           options_.scheduler_name.c_str(), task.name.c_str());
    }
    return Status::Error(StatusCode::kInternal, "no task is ready and none is under way");
  }
  const int64_t begin = NowNs();
  const auto deadline =
      std::chrono::steady_clock::now() + std::chrono::milliseconds(options_.timeout_ms + kGraceMs);
  const bool woken = transfers_->WaitUntil(deadline);
  result->waited_seconds += static_cast<double>(NowNs() - begin) * 1e-9;
  if (woken) return {};
  return Status::Error(StatusCode::kTimeout,
                       "%zu transfers did not end within %lld ms; communicator '%s' "
                       "breaks its deadlines",
                       transfers_->in_flight(),
                       static_cast<long long>(options_.timeout_ms + kGraceMs),
                       options_.communicator_name.c_str());
}

Status Executor::RunTask(const Task& task, const StepInput& input) {
  if (task.instruction != kNone) return memory_->Run(task.instruction, input.step, true);
  switch (task.info.kind) {
    case TaskKind::kAccumulate:
      return {};  // the gradient is complete where it will be sent from
    case TaskKind::kHook:
      return RunHook(task);
    case TaskKind::kUpdate:
      return RunUpdate(task, input);
    default:
      return Status::Error(StatusCode::kInternal, "task '%s' cannot run on the compute lane",
                           task.name.c_str());
  }
}

Status Executor::RunHook(const Task& task) {
  if (task.hook_work == HookWork::kAllObserved) return {};
  const int32_t index = memory_->layout().parameters[task.parameter];
  const Parameter& parameter = memory_->graph().parameters[index];
  const bool local = hook_traits_[task.hook].stage == HookStage::kLocal;
  float local_scale = 1;
  const GradientView view{.parameter = static_cast<uint32_t>(task.parameter),
                          .name = parameter.name,
                          .data = memory_->gradients() + memory_->layout().offset[index],
                          .count = parameter.shape.Count(),
                          .scale = local ? &local_scale : &gradient_scale_[task.parameter],
                          .stream = memory_->stream()};
  GradientHook& hook = *plugins_.hooks[task.hook];
  const char* name = options_.hook_names[task.hook].c_str();
  Status status = task.hook_work == HookWork::kObserve ? hook.Observe(view) : hook.Apply(view);
  if (!status.ok()) return status.WithContext("hook '%s'", name);
  if (local_scale == 1) return {};
  return Status::Error(StatusCode::kPlugin,
                       "hook '%s' scaled the gradient of '%s' before its transfer", name,
                       parameter.name.c_str());
}

Status Executor::RunUpdate(const Task& task, const StepInput& input) {
  const int32_t index = memory_->layout().parameters[task.parameter];
  const Parameter& parameter = memory_->graph().parameters[index];
  const int64_t offset = memory_->layout().offset[index];
  UpdateCall call{.value = memory_->parameters() + offset,
                  .gradient = memory_->gradients() + offset,
                  .count = parameter.shape.Count(),
                  .gradient_scale = gradient_scale_[task.parameter],
                  .learning_rate = input.learning_rate,
                  .weight_decay_scale = parameter.decay ? 1.0f : 0.0f,
                  .step = input.step,
                  .stream = memory_->stream()};
  for (size_t i = 0; i < states_.size(); ++i) call.states[i] = states_[i].f32() + offset;
  Status status = plugins_.optimizer->Update(call);
  if (status.ok()) return status;
  return status.WithContext("optimizer '%s' on '%s'", options_.optimizer_name.c_str(),
                            parameter.name.c_str());
}

// A step that failed on one rank can never end on the others, so nothing of this rank may stay
// under way.
Status Executor::GiveUp(Status status) {
  plugins_.scheduler->On({.kind = EventKind::kError});
  plugins_.communicator->Abort(status);
  return status;
}

Status Executor::WaitForWork(const Transfer& transfer) {
  Work* work = nullptr;
  Status status = plugins_.communicator->Submit(transfer, &work);
  if (status.ok()) {
    status = work->WaitHost(options_.timeout_ms + kGraceMs);
    work->Release();
  }
  return status.ok() ? status : GiveUp(std::move(status));
}

Status Executor::BroadcastParameters() {
  Transfer transfer{.kind = TransferKind::kBroadcast,
                    .count = memory_->layout().total_count,
                    .sequence = ++sequence_,
                    .stream = memory_->stream(),
                    .timeout_ms = options_.timeout_ms};
  transfer.send = transfer.recv = memory_->parameters();
  return WaitForWork(transfer).WithContext("broadcast of the initial parameters");
}

Status Executor::AllReduce(DType dtype, void* data, int64_t count) {
  Transfer transfer{.kind = TransferKind::kAllReduce,
                    .dtype = dtype,
                    .send = data,
                    .recv = data,
                    .count = count,
                    .sequence = ++sequence_,
                    .timeout_ms = options_.timeout_ms};
  return WaitForWork(transfer);
}

}  // namespace engine
