// The passes of a step: with micro-batches several forward and backward passes follow each other
// before anything is sent.

#include <algorithm>

#include "core/exec/executor.h"

namespace engine {

// The parts are nearly equal, and larger ones come first.
Status Executor::BeginMicroBatch(int64_t index) {
  const int64_t part = input_.samples / options_.micro_batches;
  const int64_t larger = input_.samples % options_.micro_batches;
  const int64_t begin = index * part + std::min(index, larger);
  call_context_ = {.training = true,
                   .adds = index > 0,
                   .step = input_.step,
                   .first_sample = static_cast<uint64_t>(input_.first_sample + begin),
                   .replicas = replicas_.get()};
  now_.first_sample = call_context_.first_sample;
  ENGINE_RETURN_IF_ERROR(memory_->SetScalars(now_));
  return memory_->SetBatch(input_.input, input_.target, part + (index < larger ? 1 : 0),
                           input_.others, begin);
}

// Begins after all forward tasks of the first micro-batch, and ends with the forward pass of the
// last one; nothing else computes meanwhile.
Status Executor::RunMicroBatches(const Task& task) {
  if (task.gathers) replicas_->Begin(task.info.id);
  const int32_t forward_count = memory_->program().forward_count;
  const auto count = static_cast<int32_t>(memory_->program().instructions.size());
  for (int64_t index = 1; index < options_.micro_batches; ++index) {
    ENGINE_RETURN_IF_ERROR(RunInstructions(forward_count, count));
    ENGINE_RETURN_IF_ERROR(BeginMicroBatch(index));
    ENGINE_RETURN_IF_ERROR(KeepStatistics());
    ENGINE_RETURN_IF_ERROR(RunInstructions(0, forward_count));
    ENGINE_RETURN_IF_ERROR(AddKeptStatistics());
    const std::lock_guard lock(mutex_);
    if (!failure_.ok()) return failure_;
  }
  return {};
}

Status Executor::RunInstructions(int32_t begin, int32_t end) {
  for (int32_t k = begin; k < end; ++k) ENGINE_RETURN_IF_ERROR(memory_->Run(k, call_context_));
  return {};
}

}  // namespace engine
