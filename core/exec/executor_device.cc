// What is different where the device is an accelerator: nothing that it computes is known to the
// host when the work is queued.
//
//  * Scales of gradients are numbers in device memory, which the device derives from the statistics
//    of the step, and which hooks and updates read there.
//  * Statistics are copied to the host on their way; Step gives those of the step before, so that
//    the device always has work.
//  * Tasks that a transfer waits for end when the device has reached them (DeviceLane).
//  * With one rank, the work of a step can be recorded and replayed.

#include <algorithm>

#include "core/exec/clock.h"
#include "core/exec/executor.h"

namespace engine {
namespace {

// Steps before a recording: ops choose algorithms and allocate in the first ones.
constexpr uint64_t kWarmUpSteps = 3;
constexpr size_t kScratchFloats = 64;

}  // namespace

Status Executor::PrepareDevice() {
  accelerator_ = memory_->accelerator();
  const bool can_record =
      accelerator_ != nullptr && options_.rank.world_size == 1 && options_.micro_batches == 1;
  if (options_.record_steps && !can_record) {
    return Status::Error(StatusCode::kConfig,
                         "train.record_steps is for one rank on a GPU, without "
                         "train.micro_batches: set it to false");
  }
  if (accelerator_ == nullptr) return {};
  const char* const device = plugins_.device->type();
  if (communicator_traits_.device_memory == 0) {
    return Status::Error(
        StatusCode::kConfig,
        "communicator '%s' moves host memory only, but the ops run on '%s': choose "
        "nccl, or null with one rank",
        options_.communicator_name.c_str(), device);
  }
  Stream* const stream = memory_->stream();
  ENGINE_ASSIGN_OR_RETURN(
      device_scales_, DeviceBuffer::Create(memory_->device(),
                                           (gradient_scale_.size() + 1) * sizeof(float), stream));
  ENGINE_ASSIGN_OR_RETURN(
      device_scratch_,
      DeviceBuffer::Create(memory_->device(), kScratchFloats * sizeof(float), stream));
  const float one = 1;
  ENGINE_RETURN_IF_ERROR(
      memory_->device().Copy(ScaleAt(gradient_scale_.size()), &one, sizeof(one), stream));
  ENGINE_ASSIGN_OR_RETURN(device_statistics_, DeviceStatistics::Create(*memory_));
  span_updates_ = static_cast<SpanUpdates*>(plugins_.optimizer->Query(kSpanUpdatesId));
  if (options_.rank.world_size == 1) return {};
  ENGINE_ASSIGN_OR_RETURN(
      device_lane_,
      DeviceLane::Create(memory_->device(), tasks_.tasks.size(), options_.device_timeout_ms,
                         [this](uint32_t task, Status status) { OnReached(task, status); }));
  return {};
}

float* Executor::ScaleAt(size_t index) {
  return accelerator_ == nullptr ? &gradient_scale_[index] : device_scales_.f32() + index;
}

// The statistics travel behind the work that makes them, and gradients when they are made; what
// else follows a compute task is queued behind it.
bool Executor::FollowedByTransfer(const Task& task) const {
  return std::any_of(task.successors.begin(), task.successors.end(), [&](uint32_t next) {
    const Task& successor = tasks_.tasks[next];
    return successor.info.kind == TaskKind::kTransfer &&
           successor.data != TransferData::kStatistics;
  });
}

void Executor::OnReached(uint32_t id, Status status) {
  Lock lock(mutex_);
  if (!status.ok()) {
    Fail(status.WithContext("%s", tasks_.tasks[id].name.c_str()));
  } else {
    Finish(id, NowNs(), 0);
  }
  PumpAside(std::move(lock));
}

// What the host adds to the statistics of this rank, behind those that the loss op makes.
Status Executor::AnnounceOnDevice() {
  if (options_.rank.world_size == 1) return {};
  struct {
    float stop;
    float order_bits[16];
  } own{};
  static_assert(sizeof(own) + offsetof(StepStatistics, stop) == sizeof(StepStatistics));
  own.stop = input_.stop ? 1.0f : 0.0f;
  const auto bits = log_.DigestBits();
  std::copy(bits.begin(), bits.end(), own.order_bits);
  return memory_->device().Copy(&memory_->statistics()->stop, &own, sizeof(own), memory_->stream());
}

Status Executor::TakeDeviceStatistics() {
  statistics_known_ = true;
  ENGINE_RETURN_IF_ERROR(accelerator_->math().FillQuotient(
      &memory_->statistics()->count, 1 / options_.loss_scale, device_scales_.f32(),
      static_cast<int64_t>(gradient_scale_.size()), memory_->stream()));
  return recording_ ? Status() : device_statistics_->Collect(input_.step);
}

Result<StepResult> Executor::ReadStatistics(uint64_t step) {
  StepResult result;
  if (!device_statistics_->has(step)) return result;
  auto read = device_statistics_->Read(step, options_.device_timeout_ms);
  if (!read.ok()) {
    return read.status().WithContext("step %llu", static_cast<unsigned long long>(step));
  }
  result.statistics = *read;
  result.step = step;
  if (options_.rank.world_size == 1) result.statistics.stop = stop_asked_[step % 2] ? 1.0f : 0.0f;
  if (options_.rank.world_size > 1) ENGINE_RETURN_IF_ERROR(CheckOrderBits(result.statistics));
  return result;
}

Result<StepResult> Executor::Remaining() {
  if (accelerator_ == nullptr) return StepResult();
  auto read = ReadStatistics(now_.step);
  if (!read.ok()) return GiveUp(read.status());
  read->seconds = static_cast<double>(NowNs() - step_end_ns_) * 1e-9;
  return read;
}

// All of a flush is queued; whoever asked for it reads memory.
Status Executor::WaitForDevice() {
  if (accelerator_ == nullptr) return {};
  ENGINE_RETURN_IF_ERROR(memory_->stream()->Synchronize(options_.device_timeout_ms));
  return accelerator_->Fault();
}

Status Executor::KeepStatistics() {
  if (accelerator_ == nullptr) {
    kept_statistics_ = *memory_->statistics();
    return {};
  }
  return memory_->device().Copy(device_scratch_.data(), memory_->statistics(), 3 * sizeof(float),
                                memory_->stream());
}

Status Executor::AddKeptStatistics() {
  StepStatistics* const statistics = memory_->statistics();
  if (accelerator_ != nullptr) {
    return accelerator_->math().Add(&statistics->loss_sum, device_scratch_.f32(), 3,
                                    memory_->stream());
  }
  statistics->loss_sum += kept_statistics_.loss_sum;
  statistics->count += kept_statistics_.count;
  statistics->correct += kept_statistics_.correct;
  return {};
}

// The host's numbers are of no use to the device; `scale` is an index.
Status Executor::Update(UpdateCall call, const Parameter& parameter, int64_t offset, size_t scale) {
  if (accelerator_ == nullptr) return plugins_.optimizer->Update(call);
  call.gradient_scale = 1;
  call.learning_rate_scale = parameter.learning_rate_scale;
  call.device_scale = ScaleAt(scale);
  call.scalars = memory_->scalars(tail_step_ == now_.step ? 1 : 0);
  call.value_bf16 = memory_->copy_at(offset);
  if (span_updates_ == nullptr) return plugins_.optimizer->Update(call);
  updates_.push_back(call);
  return {};
}

Status Executor::EndUpdates() {
  if (updates_.empty()) return {};
  const Status status = span_updates_->Update(updates_);
  updates_.clear();
  return status;
}

Status Executor::AllReduceOnDevice(DType dtype, void* data, int64_t count) {
  const size_t size_bytes = static_cast<size_t>(count) * SizeOf(dtype);
  ENGINE_CHECK(size_bytes <= device_scratch_.size_bytes(), "%zu bytes", size_bytes);
  Device& device = memory_->device();
  Stream* const stream = memory_->stream();
  ENGINE_RETURN_IF_ERROR(device.Copy(device_scratch_.data(), data, size_bytes, stream));
  ENGINE_RETURN_IF_ERROR(RunAlone({.kind = TransferKind::kAllReduce,
                                   .dtype = dtype,
                                   .send = device_scratch_.data(),
                                   .recv = device_scratch_.data(),
                                   .count = count,
                                   .stream = stream}));
  ENGINE_RETURN_IF_ERROR(device.Copy(data, device_scratch_.data(), size_bytes, stream));
  return stream->Synchronize(options_.device_timeout_ms);
}

bool Executor::CanRecord(const StepInput& input) const {
  return options_.record_steps && recorded_ == nullptr && steps_run_ > kWarmUpSteps &&
         input.samples == memory_->graph().max_samples;
}

// A step begins with what is left of the one before, and after Flush nothing is.
bool Executor::StandsAsRecorded() const {
  const std::lock_guard lock(mutex_);
  return state_->phases() == recorded_from_;
}

bool Executor::CanReplay(const StepInput& input) const {
  return recorded_ != nullptr && input.samples == recorded_samples_ && StandsAsRecorded();
}

// The step was recorded instead of run, so now it is run. It is of no use to later ones unless it
// leaves what it began with.
Status Executor::Record(Status driven) {
  Recording* recorded = nullptr;
  const Status ended = accelerator_->EndRecording(memory_->stream(), &recorded);
  recorded_.reset(recorded);
  ENGINE_RETURN_IF_ERROR(driven);
  ENGINE_RETURN_IF_ERROR(ended);
  recorded_samples_ = input_.samples;
  ENGINE_RETURN_IF_ERROR(recorded_->Launch(memory_->stream()));
  ENGINE_RETURN_IF_ERROR(device_statistics_->Collect(input_.step));
  if (StandsAsRecorded()) return {};
  const Status done = memory_->stream()->Synchronize(options_.device_timeout_ms);
  recorded_.reset();
  return done;
}

// The executor stays where it stands: the head is done, the tail is to come.
Status Executor::Replay() {
  {
    const std::lock_guard lock(mutex_);
    RecordStepSpan(SpanKind::kStep);
    step_begin_ns_ = NowNs();
  }
  tail_step_ = input_.step;
  tail_rate_ = input_.learning_rate;
  ENGINE_RETURN_IF_ERROR(recorded_->Launch(memory_->stream()));
  return device_statistics_->Collect(input_.step);
}

}  // namespace engine
