// What two threads touch here, and why that is in order: MakeTransfer and TakeResult run under the
// lock of the runner, on any thread; all else on the thread of the rank.
// * A local hook gets a 1 of its own for a scale, as it may not scale: the sum would mix scales of
//   ranks.
// * Scales and statistics are written in TakeResult, before the tasks that read the scales become
//   ready, and before the head of the step is done; both become known under the lock.
// * Statistics are summed up in a copy, which is the communicator's from the end of the task that
//   makes them to TakeResult, so the thread of the rank takes what it needs of it before that.
// * A scale that moves is asked for before the loss of a step, when all updates of the step before
//   are done, and so its decision. It decides on the thread of the rank, behind the one task that
//   waits for all observations: so what a step skips, it skips on all ranks, in the same tasks. The
//   sums of a later hook are then those of this one once more, and nobody reads them.
// * The sums of a hook are asked for behind each of its observations. Their transfer begins when all
//   of those are done, and before another hook observes.
#include "core/exec/host_step.h"

#include <algorithm>
#include <string>

#include "core/base/hash.h"
#include "core/exec/step_runner.h"

namespace engine::exec {

constexpr size_t kMaxObserved = 16;  // numbers of GradientHook::Observed

HostStep::HostStep(const StepParts& parts)
    : parts_(parts),
      gradient_scale_(static_cast<size_t>(parts.tasks.scale_count)),
      observed_counts_(parts.plugins.hooks.size()) {
  base::CallWatch* const watch = parts.plugins.watch;
  for (const auto& hook : parts.plugins.hooks) {
    if (moving_scale_ == nullptr) moving_scale_ = Query<plugin::LossScale>(*hook);
  }
  for (const std::string& hook : parts.options.hook_names) {
    begins_.push_back(watch ? watch->Describe("hook '" + hook + "'", "BeginStep") : nullptr);
  }
}

Status HostStep::Begin(const StepInput& input) {
  input_ = input;
  if (input_.all_samples == 0) input_.all_samples = input.samples * parts_.options.rank.world_size;
  now_ = {.step = input.step,
          .update_step = input.step - Skipped(),
          .learning_rate = input.learning_rate};
  backward_begun_ = false;
  ENGINE_RETURN_IF_ERROR(BeginMicroBatch(0));
  if (!queues()) *parts_.memory.statistics() = {.stop = input.stop ? 1.0f : 0.0f};
  parts_.updates.BeginStep(input_);
  return {};
}

Result<StepResult> HostStep::Step(const StepInput& input) {
  ENGINE_RETURN_IF_ERROR(Begin(input));
  ENGINE_RETURN_IF_ERROR(runner_->Begin(input_.step));
  ENGINE_RETURN_IF_ERROR(runner_->RunHead());
  return StepResult{.step = input_.step, .statistics = statistics_};
}

// Keys say what moves, and are the same on all ranks and in every step: of a task of this plan, or of
// a bucket at the servers (ServedUpdates).
Transfer HostStep::MakeTransfer(const Task& task, uint64_t step) {
  Transfer transfer{.kind = task.info.transfer,
                    .key = base::HashOf({parts_.tasks.digest, task.info.id}) | 1,
                    .priority = task.info.priority,
                    .bucket = task.info.bucket,
                    .stream = StreamOf(task),
                    .timeout_ms = parts_.options.timeout_ms};
  if (task.data == TransferData::kStatistics) {
    transfer.send = transfer.recv = summed();
    transfer.count = sizeof(StepStatistics) / sizeof(float);
  } else if (task.data == TransferData::kObserved) {
    transfer.send = transfer.recv = observed_.data();
    transfer.count = static_cast<int64_t>(observed_.size());
  } else if (task.data == TransferData::kGradients && parts_.wire != nullptr) {
    parts_.wire->Describe(task, &transfer);
  } else {
    parts_.updates.Describe(task, step, &transfer);
  }
  return transfer;
}

// A transferred gradient is a sum over all samples of the step, times the scale of the loss; hooks
// and optimizers see the mean.
Status HostStep::TakeStatistics() {
  statistics_ = *summed();
  const float count = statistics_.count > 0 ? statistics_.count : 1;  // of weights: below 1 too
  std::ranges::fill(gradient_scale_, 1 / (count * loss_scale_));
  return {};
}

Status HostStep::Run(const Task& task) {
  if (!task.tail && task.info.kind != TaskKind::kForward && !backward_begun_) {
    ENGINE_RETURN_IF_ERROR(BeginBackward());
  }
  if (task.info.kind == TaskKind::kHook) return RunHook(task);
  if (task.info.kind == TaskKind::kUpdate) return RunUpdate(task);
  if (task.makes_statistics && moving_scale_ != nullptr) {
    loss_scale_ = moving_scale_->scale();
    ENGINE_RETURN_IF_ERROR(parts_.memory.SetLossScale(loss_scale_));
  }
  if (parts_.replicas != nullptr) parts_.replicas->Begin(task.info.id);
  ENGINE_RETURN_IF_ERROR(
      task.instruction == graph::kNone
          ? RunMicroBatches()
          : parts_.memory.Run(task.instruction, task.instruction + 1, call_context_));
  if (!task.makes_statistics) return {};
  if (adds_up_) ENGINE_RETURN_IF_ERROR(KeepStatistics(/*add=*/parts_.options.micro_batches > 1));
  // Forward tasks have read every parameter that is trained, so all updates of the step before are
  // done; those of this step wait for gradients, which wait for the loss.
  if (input_.check != nullptr) {
    ENGINE_RETURN_IF_ERROR(
        input_.check->Take(parts_.memory, parts_.updates, input_.step - 1, summed()->marks));
  }
  if (!queues()) own_count_ = summed()->count;
  return parts_.tasks.statistics == trace::kNoTask ? TakeStatistics() : Status();
}

// The parts are nearly equal, and larger ones come first.
Status HostStep::BeginMicroBatch(int64_t index) {
  const int64_t part = input_.samples / parts_.options.micro_batches;
  const int64_t larger = input_.samples % parts_.options.micro_batches;
  const int64_t begin = index * part + std::min(index, larger);
  call_context_ = {.training = true,
                   .adds = index > 0,
                   .step = input_.step,
                   .first_sample = static_cast<uint64_t>(input_.first_sample + begin),
                   .replicas = parts_.replicas};
  now_.first_sample = call_context_.first_sample;
  ENGINE_RETURN_IF_ERROR(parts_.memory.SetScalars(now_));
  return parts_.memory.SetBatch(input_.input, input_.target, part + (index < larger ? 1 : 0),
                                input_.others, begin);
}

// Begins after all forward tasks of the first micro-batch, and ends with the forward pass of the
// last one; nothing else computes meanwhile.
Status HostStep::RunMicroBatches() {
  ModelMemory& memory = parts_.memory;
  const int32_t forward_count = memory.program().forward_count;
  const auto count = static_cast<int32_t>(memory.program().instructions.size());
  for (int64_t index = 1; index < parts_.options.micro_batches; ++index) {
    ENGINE_RETURN_IF_ERROR(memory.Run(forward_count, count, call_context_));
    ENGINE_RETURN_IF_ERROR(BeginMicroBatch(index));
    ENGINE_RETURN_IF_ERROR(KeepStatistics(/*add=*/index > 1));
    ENGINE_RETURN_IF_ERROR(memory.Run(0, forward_count, call_context_));
    ENGINE_RETURN_IF_ERROR(runner_->failure());
  }
  return {};
}

Status HostStep::KeepStatistics(bool add) {
  const StepStatistics& made = *parts_.memory.statistics();
  StepStatistics& sum = *summed();
  if (!add) {
    sum = made;
    return {};
  }
  sum.loss_sum += made.loss_sum;
  sum.count += made.count;
  sum.correct += made.correct;
  return {};
}

// By now all updates of the step before are done: every forward task has run.
Status HostStep::BeginBackward() {
  backward_begun_ = true;
  const auto& keep_states = parts_.options.keep_states;
  if (keep_states) ENGINE_RETURN_IF_ERROR(keep_states(input_.step));
  tail_ = input_;
  skipped_before_ = Skipped();
  tail_.step -= skipped_before_;
  for (size_t i = 0; i < parts_.plugins.hooks.size(); ++i) {
    const base::OpenCall open(parts_.plugins.watch, base::CallWatch::kCompute, begins_[i]);
    ENGINE_RETURN_IF_ERROR(plugin::Answer(parts_.plugins.hooks[i]->BeginStep(input_.step))
                               .WithContext("hook '%s'", parts_.options.hook_names[i].c_str()));
  }
  return parts_.updates.BeginBackward(input_, own_count_);
}

Status HostStep::RunHook(const Task& task) {
  if (task.hook_work == HookWork::kAllObserved) {
    return moving_scale_ == nullptr ? Status() : moving_scale_->Decide(StreamOf(task));
  }
  if (task.tail && Skipped() != skipped_before_) return {};
  GradientHook& hook = *parts_.plugins.hooks[task.hook];
  const char* name = parts_.options.hook_names[task.hook].c_str();
  Stream* const stream = StreamOf(task);
  if (task.hook_work == HookWork::kPack) {
    return parts_.wire->Pack(task, ScaleAt(kPackScale), stream).WithContext("hook '%s'", name);
  }
  if (task.hook_work == HookWork::kUnpack) {
    return parts_.wire->Unpack(task, stream).WithContext("hook '%s'", name);
  }
  const FlatLayout& layout = parts_.memory.layout();
  for (size_t i = 0; i < task.spans.size(); ++i) {
    const TaskSpan& span = task.spans[i];
    const int32_t index = layout.parameters[span.parameter];
    const graph::Parameter& parameter = parts_.memory.graph().parameters[index];
    const GradientView view{
        .parameter = static_cast<uint32_t>(span.parameter),
        .name = parameter.name,
        .data = parts_.memory.gradients() + layout.offset[index] + span.offset,
        .offset = span.offset,
        .count = span.count,
        .scale = ScaleAt(task.tail ? task.first_scale + i : gradient_scale_.size()),
        .stream = stream};
    const bool observes = task.hook_work == HookWork::kObserve;
    ENGINE_RETURN_IF_ERROR(plugin::Answer(observes ? hook.Observe(view) : hook.Apply(view))
                               .WithContext("hook '%s' on '%s'", name, parameter.name.c_str()));
    if (local_scale_ == 1) continue;
    return Status::Error(StatusCode::kPlugin,
                         "hook '%s' scaled the gradient of '%s' before its transfer", name,
                         parameter.name.c_str());
  }
  if (task.hook_work != HookWork::kObserve || !parts_.updates.in_parts()) return {};
  observed_ = hook.Observed();
  size_t& usual = observed_counts_[task.hook];
  if (usual == 0) usual = observed_.size();
  const bool fits = observed_.size() == usual && usual > 0 && usual <= kMaxObserved;
  if (fits && observed_.data() != nullptr) return {};
  return Status::Error(StatusCode::kPlugin,
                       "hook '%s' has observed %zu numbers where 1 to %zu can be summed up, as "
                       "many in every step",
                       name, observed_.size(), kMaxObserved);
}

// The step and the rate are those of the backward pass before: the next step may have begun.
Status HostStep::RunUpdate(const Task& task) {
  if (Skipped() != skipped_before_) return {};
  const std::string& name = parts_.options.optimizer_name;
  const OptimizerStates& states = parts_.updates.states();
  ModelMemory& memory = parts_.memory;
  for (size_t i = 0; i < task.spans.size(); ++i) {
    const TaskSpan& span = task.spans[i];
    const int32_t index = memory.layout().parameters[span.parameter];
    const graph::Parameter& parameter = memory.graph().parameters[index];
    const int64_t offset = memory.layout().offset[index] + span.offset;
    const size_t scale = task.first_scale + i;
    UpdateCall call{.value = memory.parameters() + offset,
                    .gradient = memory.gradients() + offset,
                    .count = span.count,
                    .gradient_scale = gradient_scale_[scale],
                    .learning_rate = tail_.learning_rate * parameter.learning_rate_scale,
                    .weight_decay_scale = parameter.DecayScale(),
                    .step = tail_.step,
                    .stream = StreamOf(task)};
    for (int32_t s = 0; s < states.count(); ++s) call.states[s] = states.At(s, span.bucket, offset);
    call.value_bf16 = memory.copy_at(offset);
    ENGINE_RETURN_IF_ERROR(
        plugin::Answer(Update(call, parameter, scale))
            .WithContext("optimizer '%s' on '%s'", name.c_str(), parameter.name.c_str()));
  }
  return plugin::Answer(EndUpdates()).WithContext("optimizer '%s'", name.c_str());
}

}  // namespace engine::exec
