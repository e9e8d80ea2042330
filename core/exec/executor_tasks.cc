// What the tasks of a step do.

#include <xxhash.h>

#include <algorithm>

#include "core/exec/executor.h"
#include "engine/ext/grouped_transfers.h"

namespace engine {
namespace {

// Beyond the deadline of a transfer, for a communicator that does not keep it.
constexpr int64_t kGraceMs = 5000;

}  // namespace

Transfer Executor::MakeTransfer(const Task& task) {
  const uint64_t identity[2] = {tasks_.digest, task.info.id};
  Transfer transfer{.kind = task.info.transfer,
                    .key = XXH3_64bits(identity, sizeof(identity)) | 1,
                    .priority = task.info.priority,
                    .unit = task.info.unit,
                    .sequence = ++sequence_,
                    .stream = StreamOf(task),
                    .timeout_ms = options_.timeout_ms};
  // With one rank all stays where it is, also in a recording.
  if (accelerator_ != nullptr && device_order_ == nullptr) transfer.stream = nullptr;
  if (task.data == TransferData::kStatistics) {
    transfer.send = transfer.recv = memory_->statistics();
    transfer.count = sizeof(StepStatistics) / sizeof(float);
    if (accelerator_ != nullptr) return transfer;
    own_count_ = memory_->statistics()->count;
    const auto bits = log_.DigestBits();
    std::copy(bits.begin(), bits.end(), memory_->statistics()->order_bits);
    return transfer;
  }
  if (task.data == TransferData::kObserved) {
    const std::span<float> sums = plugins_.hooks[task.hook]->Observed();
    transfer.send = transfer.recv = sums.data();
    transfer.count = static_cast<int64_t>(sums.size());
    return transfer;
  }
  if (served()) {
    MakeServedTransfer(task, &transfer);
    return transfer;
  }
  if (wire_ != nullptr && task.data == TransferData::kGradients) {
    wire_->Describe(task, &transfer);
    return transfer;
  }
  const UnitLayout& unit = memory_->layout().units[task.info.unit];
  const bool parameters = task.data == TransferData::kParameters;
  if (parameters) transfer.dtype = unit.gathered;
  transfer.send = transfer.recv =
      transfer.dtype == DType::kBFloat16
          ? memory_->copy_at(unit.offset)
          : (parameters ? memory_->parameters() : memory_->gradients()) + unit.offset;
  transfer.count = unit.count;
  CutForRank(options_.rank, &transfer);
  return transfer;
}

Status Executor::RunTask(const Task& task) {
  ENGINE_RETURN_IF_ERROR(Run(task));
  if (!task.makes_statistics) return {};
  if (accelerator_ != nullptr) return TakeDeviceStatistics(task);
  const std::lock_guard lock(mutex_);
  return TakeStatistics();
}

Status Executor::Run(const Task& task) {
  if (!task.tail && task.info.kind != TaskKind::kForward && !backward_begun_) {
    ENGINE_RETURN_IF_ERROR(BeginBackward());
  }
  if (task.instruction != kNone) {
    if (task.gathers) replicas_->Begin(task.info.id);
    return memory_->Run(task.instruction, call_context_);
  }
  switch (task.info.kind) {
    case TaskKind::kForward:
      return RunMicroBatches(task);
    case TaskKind::kAccumulate:
      return {};  // the gradient is complete where it will be sent from
    case TaskKind::kHook:
      return RunHook(task);
    case TaskKind::kUpdate:
      return RunUpdate(task);
    default:
      return Status::Error(StatusCode::kInternal, "task '%s' cannot run on the compute lane",
                           task.name.c_str());
  }
}

// By now all updates of the step before are done: every forward task has run.
Status Executor::BeginBackward() {
  backward_begun_ = true;
  tail_step_ = input_.step;
  tail_rate_ = input_.learning_rate;
  for (auto& hook : plugins_.hooks) ENGINE_RETURN_IF_ERROR(hook->BeginStep(input_.step));
  return served() ? BeginServedStep() : Status();
}

Status Executor::RunHook(const Task& task) {
  if (task.hook_work == HookWork::kAllObserved) return {};
  GradientHook& hook = *plugins_.hooks[task.hook];
  const char* name = options_.hook_names[task.hook].c_str();
  if (task.hook_work == HookWork::kPack || task.hook_work == HookWork::kUnpack) {
    const bool packs = task.hook_work == HookWork::kPack;
    Stream* const stream = StreamOf(task);
    return (packs ? wire_->Pack(task, stream) : wire_->Unpack(task, stream))
        .WithContext("hook '%s'", name);
  }
  const bool local = hook_traits_[task.hook].stage == HookStage::kLocal;
  for (size_t i = 0; i < task.spans.size(); ++i) {
    const TaskSpan& span = task.spans[i];
    const int32_t index = memory_->layout().parameters[span.parameter];
    const Parameter& parameter = memory_->graph().parameters[index];
    float local_scale = 1;
    const GradientView view{
        .parameter = static_cast<uint32_t>(span.parameter),
        .name = parameter.name,
        .data = memory_->gradients() + memory_->layout().offset[index] + span.offset,
        .offset = span.offset,
        .count = span.count,
        .scale = !local                    ? ScaleAt(first_scale_[task.info.id] + i)
                 : accelerator_ == nullptr ? &local_scale
                                           : ScaleAt(gradient_scale_.size()),
        .stream = StreamOf(task)};
    const Status status =
        task.hook_work == HookWork::kObserve ? hook.Observe(view) : hook.Apply(view);
    if (!status.ok()) return status.WithContext("hook '%s' on '%s'", name, parameter.name.c_str());
    if (local_scale == 1) continue;
    return Status::Error(StatusCode::kPlugin,
                         "hook '%s' scaled the gradient of '%s' before its transfer", name,
                         parameter.name.c_str());
  }
  return {};
}

Status Executor::RunUpdate(const Task& task) {
  for (size_t i = 0; i < task.spans.size(); ++i) {
    const TaskSpan& span = task.spans[i];
    const int32_t index = memory_->layout().parameters[span.parameter];
    const Parameter& parameter = memory_->graph().parameters[index];
    const int64_t offset = memory_->layout().offset[index] + span.offset;
    const size_t scale = first_scale_[task.info.id] + i;
    UpdateCall call{.value = memory_->parameters() + offset,
                    .gradient = memory_->gradients() + offset,
                    .count = span.count,
                    .gradient_scale = gradient_scale_[scale],
                    .learning_rate = tail_rate_ * parameter.learning_rate_scale,
                    .weight_decay_scale = parameter.DecayScale(),
                    .step = tail_step_,
                    .stream = StreamOf(task)};
    for (int32_t s = 0; s < states_->count(); ++s)
      call.states[s] = states_->At(s, span.unit, offset);
    const Status status = Update(call, parameter, offset, scale);
    if (status.ok()) continue;
    return status.WithContext("optimizer '%s' on '%s'", options_.optimizer_name.c_str(),
                              parameter.name.c_str());
  }
  return EndUpdates().WithContext("optimizer '%s'", options_.optimizer_name.c_str());
}

Status Executor::RunAlone(Transfer transfer, int64_t timeout_ms) {
  NoteAlone(&transfer, timeout_ms);
  Work* work = nullptr;
  const Status submitted = plugins_.communicator->Submit(transfer, &work);
  return AwaitAlone(submitted, work, timeout_ms);
}

Status Executor::RunTogether(std::span<Transfer> transfers) {
  auto* const groups =
      static_cast<GroupedTransfers*>(plugins_.communicator->Query(kGroupedTransfersId));
  if (groups == nullptr || transfers.size() < 2) {
    for (const Transfer& transfer : transfers) ENGINE_RETURN_IF_ERROR(RunAlone(transfer));
    return {};
  }
  for (Transfer& transfer : transfers) NoteAlone(&transfer, options_.timeout_ms);
  Work* work = nullptr;
  const Status submitted = groups->SubmitGroup(transfers, &work);
  return AwaitAlone(submitted, work, options_.timeout_ms);
}

void Executor::NoteAlone(Transfer* transfer, int64_t timeout_ms) {
  transfer->timeout_ms = timeout_ms;
  const std::lock_guard lock(mutex_);
  ENGINE_CHECK(TailDone(), "a transfer outside of a step while one is under way");
  transfer->sequence = ++sequence_;
  log_.Add(*transfer, kNoTask);
}

Status Executor::AwaitAlone(Status status, Work* work, int64_t timeout_ms) {
  if (status.ok()) {
    status = work->WaitHost(timeout_ms + kGraceMs);
    work->Release();
  }
  return status.ok() ? status : GiveUp(std::move(status));
}

Status Executor::ShareParameters() {
  const FlatLayout& layout = memory_->layout();
  if (served() && options_.rank.incarnation > 0) return LoadUnits(/*row_tables_only=*/false);
  if (served()) {
    ENGINE_RETURN_IF_ERROR(options_.rank.rank == 0 ? StoreUnits()
                                                   : LoadUnits(/*row_tables_only=*/false));
  }
  const int64_t from = served() ? layout.trainable_count : 0;
  if (from == layout.total_count) return {};
  Transfer transfer{.kind = TransferKind::kBroadcast,
                    .count = layout.total_count - from,
                    .stream = memory_->stream()};
  transfer.send = transfer.recv = memory_->parameters() + from;
  ENGINE_RETURN_IF_ERROR(RunAlone(transfer).WithContext("broadcast of the initial parameters"));
  return memory_->RefreshCopies();
}

Status Executor::ShareBuffers() {
  const FlatLayout& layout = memory_->layout();
  const int64_t count = layout.total_count - layout.buffer_begin;
  if (count == 0 || !buffers_differ_ || own_pace_ || options_.rank.world_size == 1) return {};
  float* const buffers = memory_->parameters() + layout.buffer_begin;
  ENGINE_RETURN_IF_ERROR(RunAlone({.kind = TransferKind::kBroadcast,
                                   .send = buffers,
                                   .recv = buffers,
                                   .count = count,
                                   .stream = memory_->stream()})
                             .WithContext("broadcast of buffers"));
  buffers_differ_ = false;
  return {};
}

Status Executor::AllReduce(DType dtype, void* data, int64_t count) {
  if (accelerator_ != nullptr) return AllReduceOnDevice(dtype, data, count);
  return RunAlone({.kind = TransferKind::kAllReduce,
                   .dtype = dtype,
                   .send = data,
                   .recv = data,
                   .count = count});
}

TensorView Executor::optimizer_state(int32_t parameter, int32_t index) const {
  if (memory_->program().of_parameter[parameter] == kNone) return {};
  const int64_t offset = memory_->layout().offset[parameter];
  float* data = nullptr;
  if (!sharded_ && !served()) {
    data = states_->At(index, kNone, offset);
  } else if (options_.rank.rank == 0 && !collected_.empty()) {
    data = collected_[index].f32() + offset;
  } else {
    return {};
  }
  return {.data = data,
          .shape = memory_->graph().parameters[parameter].shape,
          .dtype = DType::kFloat32};
}

RankTimeline Executor::Timeline() const {
  const std::lock_guard lock(mutex_);
  RankTimeline timeline{.rank = options_.rank.rank,
                        .world_size = options_.rank.world_size,
                        .dropped = recorder_.dropped(),
                        .spans = recorder_.InOrder()};
  for (const Task& task : tasks_.tasks) {
    timeline.tasks.push_back({.name = task.name,
                              .kind = task.info.kind,
                              .lane = task.info.lane,
                              .transfer = task.info.transfer,
                              .unit = task.info.unit,
                              .needed_by = task.info.needed_by,
                              .size_bytes = task.info.size_bytes});
  }
  for (const Task& task : tasks_.tasks) {
    for (uint32_t next : task.successors) timeline.tasks[next].depends_on.push_back(task.info.id);
    for (uint32_t next : task.next_successors) {
      timeline.tasks[next].depends_on_last.push_back(task.info.id);
    }
  }
  return timeline;
}

}  // namespace engine
