// What is different where the device is an accelerator: nothing that it computes is known to the
// host when the work is queued.
//
//  * Scales of gradients are numbers in device memory, which the device derives from the statistics
//    of the step, and which hooks and updates read there.
//  * Statistics are copied to the host on their way; Step gives those of the step before, so that
//    the device always has work.
//  * A task ends when its work is queued, and a transfer when it is submitted; the device keeps the
//    order (DeviceOrder). So Step queues all of a step, on the thread of the rank, and the threads
//    of the communicator only report how transfers ended: a failure ends the run, and statistics,
//    and what Flush makes visible, count only when all transfers before them were reported.
//  * The work of a step can be recorded and replayed, with the transfers of several ranks in it.
//    What is recorded begins and ends with everything on one stream, so a replay does not overlap
//    with the step before it. Its transfers are reported by one that moves nothing, behind it.

#include <algorithm>

#include "core/base/clock.h"
#include "core/exec/executor.h"
#include "engine/ext/recorded_transfers.h"

namespace engine {
namespace {

// Steps before a recording: ops choose algorithms and allocate in the first ones.
constexpr uint64_t kWarmUpSteps = 3;
constexpr size_t kScratchFloats = 64;
// For a communicator to report what the device has passed, and the cause when the device has
// failed.
constexpr int64_t kReportMs = 5000, kCauseMs = 1000, kRecordingMs = 1000;
constexpr int64_t kLookMs = 100;
// A replay that hangs is given up after the deadline of a transfer and so many of the longest
// steps.
constexpr int64_t kStepsWaited = 10;

}  // namespace

Status Executor::PrepareDevice() {
  accelerator_ = memory_->accelerator();
  if (options_.record_steps && (accelerator_ == nullptr || options_.micro_batches > 1)) {
    return Status::Error(StatusCode::kConfig,
                         "train.record_steps is for GPUs, without train.micro_batches: set it to "
                         "false");
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
  if (options_.record_steps && replicas_ != nullptr) {
    return Status::Error(StatusCode::kConfig,
                         "train.record_steps with several ranks is not for models whose ops see "
                         "the batch of all ranks (batch_norm with sync): set one of them to false");
  }
  if (options_.record_steps && plugins_.communicator->Query(kRecordedTransfersId) == nullptr) {
    return Status::Error(StatusCode::kConfig,
                         "train.record_steps with several ranks needs a communicator whose "
                         "transfers can be recorded, and '%s' is none: set it to false or choose "
                         "nccl",
                         options_.communicator_name.c_str());
  }
  ENGINE_ASSIGN_OR_RETURN(device_order_, DeviceOrder::Create(memory_->device(), stream, tasks_,
                                                             [this](const Task& transfer) {
                                                               return TakeParameters(transfer);
                                                             }));
  return {};
}

float* Executor::ScaleAt(size_t index) {
  return accelerator_ == nullptr ? &gradient_scale_[index] : device_scales_.f32() + index;
}

// Before anything of the step is queued. What the host adds to the statistics of this rank lies
// behind those that the loss op makes.
Status Executor::BeginDeviceStep() {
  device_works_ = true;
  if (device_order_ == nullptr) return {};
  ENGINE_RETURN_IF_ERROR(device_order_->WaitTaken());
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

Status Executor::TakeDeviceStatistics(const Task& task) {
  statistics_known_ = true;
  statistics_task_ = task.info.id;
  Stream* stream = memory_->stream();
  if (device_order_ != nullptr) {
    stream = device_order_->updates();
    ENGINE_RETURN_IF_ERROR(device_order_->Follow(task));
    ENGINE_RETURN_IF_ERROR(memory_->KeepScalars(stream));
  }
  ENGINE_RETURN_IF_ERROR(accelerator_->math().FillQuotient(
      &memory_->statistics()->count, 1 / options_.loss_scale, device_scales_.f32(),
      static_cast<int64_t>(gradient_scale_.size()), stream));
  if (!recording_) ENGINE_RETURN_IF_ERROR(device_statistics_->Collect(input_.step, stream));
  return device_order_ == nullptr ? Status() : device_order_->MarkTaken();
}

Result<StepResult> Executor::ReadStatistics(uint64_t step) {
  StepResult result;
  if (!device_statistics_->has(step)) return result;
  Status status = AwaitDevice(
      step, [&](int64_t timeout_ms) { return device_statistics_->Wait(step, timeout_ms); });
  if (status.ok()) status = accelerator_->Fault();
  if (!status.ok()) return status.WithContext("step %llu", static_cast<unsigned long long>(step));
  result.statistics = device_statistics_->Take(step);
  result.step = step;
  if (options_.rank.world_size == 1) result.statistics.stop = stop_asked_[step % 2] ? 1.0f : 0.0f;
  if (options_.rank.world_size > 1) ENGINE_RETURN_IF_ERROR(CheckOrderBits(result.statistics));
  return result;
}

// In parts, so that whoever ends the run is heard meanwhile. Transfers in a replay have no deadline
// of their own.
template <typename Wait>
Status Executor::AwaitDevice(uint64_t step, const Wait& wait) {
  int64_t limit_ms = options_.device_timeout_ms;
  if (recorded_ != nullptr && device_order_ != nullptr) {
    limit_ms = std::min(limit_ms, options_.timeout_ms + kStepsWaited * longest_step_ms_);
  }
  for (int64_t left_ms = limit_ms; left_ms > 0; left_ms -= kLookMs) {
    Status device = wait(std::min(left_ms, kLookMs));
    if (device.code() != StatusCode::kTimeout) return AwaitReport(std::move(device), step);
    const std::lock_guard lock(mutex_);
    if (!failure_.ok()) return failure_;
  }
  return AwaitReport(
      Status::Error(StatusCode::kTimeout, "the device did not come to its end within %lld ms",
                    static_cast<long long>(limit_ms)),
      step);
}

// After the device has passed the statistics of `step`, of the step at hand all of it, or has
// failed, as `device` says: the failure of a transfer if there was one, which is the cause where
// both fail, else `device`.
Status Executor::AwaitReport(Status device, uint64_t step) {
  const bool alone = device_order_ == nullptr;
  if (alone && !device.ok()) return device;
  Lock lock(mutex_);
  const auto reports_within = [&](int64_t limit_ms) {
    return changed_.wait_for(lock, std::chrono::milliseconds(limit_ms), [&] {
      const bool all =
          step < now_.step ? alone || reported_step_ >= step : transfers_->in_flight() == 0;
      return !failure_.ok() || (device.ok() && all);
    });
  };
  bool reported = false;
  if (recorded_ != nullptr) {
    reported = reports_within(kRecordingMs);
    // A communicator that is being aborted says why when that is done: see GiveUp.
    if (!reported) recorded_.reset();
  }
  if (!reported) reported = reports_within(device.ok() ? kReportMs : kCauseMs);
  if (!failure_.ok()) return failure_;
  if (reported || !device.ok()) return device;
  return Status::Error(StatusCode::kTimeout,
                       "communicator '%s' did not report within %lld ms the end of a transfer that "
                       "the device has passed",
                       options_.communicator_name.c_str(), static_cast<long long>(kReportMs));
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
  ENGINE_RETURN_IF_ERROR(Join());
  ENGINE_RETURN_IF_ERROR(AwaitDevice(
      now_.step, [&](int64_t timeout_ms) { return memory_->stream()->Synchronize(timeout_ms); }));
  if (replicas_ != nullptr) ENGINE_RETURN_IF_ERROR(replicas_->Settle());
  device_works_ = false;
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
  call.scalars = device_order_ == nullptr ? memory_->scalars() : memory_->kept_scalars();
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

// On all ranks in the same steps: a communicator may send otherwise what is recorded.
bool Executor::CanRecord() {
  most_samples_ = std::max(most_samples_, input_.all_samples);
  return options_.record_steps && recorded_ == nullptr && steps_run_ > kWarmUpSteps &&
         input_.all_samples == most_samples_;
}

bool Executor::CanReplay() const {
  return recorded_ != nullptr && input_.all_samples == recorded_samples_;
}

// The step was recorded instead of run, so now it is run.
Status Executor::Record(Status driven) {
  recording_ = false;
  if (driven.ok()) driven = Join();
  Recording* recorded = nullptr;
  const Status ended = accelerator_->EndRecording(memory_->stream(), &recorded);
  recorded_.reset(recorded);
  ENGINE_RETURN_IF_ERROR(driven);
  ENGINE_RETURN_IF_ERROR(ended);
  recorded_samples_ = input_.all_samples;
  return Launch();
}

// The executor stays where it stands: all of a step is done.
Status Executor::Replay() {
  {
    const std::lock_guard lock(mutex_);
    if (!failure_.ok()) return failure_;
    RecordStepSpan(SpanKind::kStep);
    step_begin_ns_ = NowNs();
  }
  tail_step_ = input_.step;
  tail_rate_ = input_.learning_rate;
  ENGINE_RETURN_IF_ERROR(Join());
  return Launch();
}

Status Executor::Launch() {
  ENGINE_RETURN_IF_ERROR(recorded_->Launch(memory_->stream()));
  ENGINE_RETURN_IF_ERROR(device_statistics_->Collect(input_.step, memory_->stream()));
  if (device_order_ == nullptr) return {};
  const Span span{.kind = SpanKind::kTask,
                  .task = statistics_task_,
                  .step = input_.step,
                  .ready_ns = step_begin_ns_,
                  .begin_ns = NowNs()};
  Transfer nothing;
  {
    const std::lock_guard lock(mutex_);
    nothing = MakeTransfer(tasks_.tasks[statistics_task_]);
  }
  nothing.count = 0;
  return transfers_->Start(span, nothing, nullptr);
}

}  // namespace engine
