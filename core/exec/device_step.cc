// * Scales of gradients are numbers in device memory, which the device derives from the statistics
//   of the step, and which hooks and updates read there.
// * Statistics are copied to the host on their way; Read gives those of the step before, so that
//   the device always has work.
// * A task ends when its work is queued, and a transfer when it is submitted; the device keeps the
//   order (DeviceOrder). So Drive queues all of a step, on the thread of the rank, and the threads
//   of the communicator only report how transfers ended: a failure ends the run, and statistics,
//   and what Settle makes visible, count only when all transfers before them were reported.
// * The work of a step can be recorded and replayed (RecordedStep), with the transfers of several
//   ranks in it. Its transfers are reported by one that moves nothing, behind it.
#include "core/exec/device_step.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "core/base/clock.h"
#include "core/exec/step_runner.h"
#include "engine/ext/recorded_transfers.h"

namespace engine::exec {
namespace {

constexpr size_t kScratchFloats = 64;
// For a communicator to report what the device has passed, and the cause when the device has
// failed.
constexpr int64_t kReportMs = 5000, kCauseMs = 1000, kRecordingMs = 1000;
constexpr int64_t kLookMs = 100;
// A replay that hangs is given up after the deadline of a transfer and so many of the longest
// steps.
constexpr int64_t kStepsWaited = 10;
// For queued work to end, before its memory is freed.
constexpr int64_t kEndMs = 10000;

// Whether the work of the run can be recorded, if that is asked for.
Status CheckRecording(const StepParts& parts) {
  if (!parts.options.record_steps || parts.options.rank.world_size == 1) return {};
  if (parts.replicas != nullptr) {
    return Status::Error(StatusCode::kConfig,
                         "train.record_steps with several ranks is not for models whose ops see "
                         "the batch of all ranks (batch_norm with sync): set one of them to false");
  }
  if (parts.plugins.communicator->Query(kRecordedTransfersId) != nullptr) return {};
  return Status::Error(StatusCode::kConfig,
                       "train.record_steps with several ranks needs a communicator whose transfers "
                       "can be recorded, and those of '%s' cannot: set it to false or choose "
                       "another communicator",
                       parts.options.communicator_name.c_str());
}

}  // namespace

DeviceStep::DeviceStep(const StepParts& parts, Accelerator& accelerator)
    : HostStep(parts), accelerator_(accelerator) {}

Result<std::unique_ptr<DeviceStep>> DeviceStep::Create(const StepParts& parts) {
  if (parts.plugins.communicator->traits().device_memory == 0) {
    return Status::Error(StatusCode::kConfig,
                         "communicator '%s' moves host memory only, but the ops run on '%s': "
                         "choose a communicator for the memory of that device",
                         parts.options.communicator_name.c_str(), parts.plugins.device->type());
  }
  ENGINE_RETURN_IF_ERROR(CheckRecording(parts));
  std::unique_ptr<DeviceStep> step(new DeviceStep(parts, *parts.memory.accelerator()));
  ENGINE_RETURN_IF_ERROR(step->Prepare());
  return step;
}

Status DeviceStep::Prepare() {
  ModelMemory& memory = parts_.memory;
  Stream* const stream = memory.stream();
  const size_t scales_bytes = (gradient_scale_.size() + 1) * sizeof(float);
  ENGINE_ASSIGN_OR_RETURN(scales_,
                          graph::DeviceBuffer::Create(memory.device(), scales_bytes, stream));
  ENGINE_ASSIGN_OR_RETURN(scratch_, graph::DeviceBuffer::Create(
                                        memory.device(), kScratchFloats * sizeof(float), stream));
  const float one = 1;
  ENGINE_RETURN_IF_ERROR(
      memory.device().Copy(ScaleAt(gradient_scale_.size()), &one, sizeof(one), stream));
  ENGINE_ASSIGN_OR_RETURN(statistics_, DeviceStatistics::Create(memory));
  span_updates_ = static_cast<SpanUpdates*>(parts_.plugins.optimizer->Query(kSpanUpdatesId));
  if (parts_.options.rank.world_size == 1) return {};
  const auto take = [this](const Task& transfer) {
    return parts_.updates.TakeParameters(transfer);
  };
  ENGINE_ASSIGN_OR_RETURN(order_, DeviceOrder::Create(memory.device(), stream, parts_.tasks, take));
  return {};
}

void DeviceStep::End() noexcept {
  (void)Join();
  (void)parts_.memory.stream()->Synchronize(kEndMs);
}

// No forward task comes before all of the tail is done, so all of a step is queued.
Status DeviceStep::Drive(double* waited_seconds) {
  Stream* const stream = parts_.memory.stream();
  const bool records = recorded_.Wants(parts_.options.record_steps, input_.all_samples);
  if (recorded_.CanReplay(input_.all_samples)) {
    ENGINE_RETURN_IF_ERROR(runner_->BeginReplay(input_.step));
    ENGINE_RETURN_IF_ERROR(Join());
    return Launch();
  }
  if (records) {
    ENGINE_RETURN_IF_ERROR(Join());
    ENGINE_RETURN_IF_ERROR(recorded_.Begin(accelerator_, stream));
  }
  Status status = runner_->RunHead(input_.step, waited_seconds);
  if (status.ok()) status = runner_->RunTail(waited_seconds);
  if (records) {  // instead of run: now it is run
    if (status.ok()) status = Join();
    const Status ended = recorded_.End(accelerator_, stream, input_.all_samples);
    if (status.ok()) status = ended;
    if (status.ok()) status = Launch();
  }
  return status;
}

// A transfer of nothing behind it reports those in the recording.
Status DeviceStep::Launch() {
  Stream* const stream = parts_.memory.stream();
  ENGINE_RETURN_IF_ERROR(recorded_.Launch(stream));
  ENGINE_RETURN_IF_ERROR(statistics_->Collect(input_.step, stream));
  return order_ == nullptr ? Status() : runner_->ReportReplay(statistics_task_, input_.step);
}

// Before anything of the step is queued. What the host adds to the statistics of this rank lies
// behind those that the loss op makes.
Status DeviceStep::BeginStep() {
  works_ = true;
  begin_ns_ = base::NowNs();
  stop_asked_[input_.step % 2] = input_.stop;
  if (order_ == nullptr) return {};
  ENGINE_RETURN_IF_ERROR(order_->WaitTaken());
  StepStatistics own{.stop = input_.stop ? 1.0f : 0.0f};
  parts_.order.WriteDigest(own.order_bits);
  return parts_.memory.device().Copy(&parts_.memory.statistics()->stop, &own.stop,
                                     sizeof(own) - offsetof(StepStatistics, stop),
                                     parts_.memory.stream());
}

// With one rank all stays where it is, also in a recording.
Transfer DeviceStep::MakeTransfer(const Task& task, uint64_t step) {
  Transfer transfer = HostStep::MakeTransfer(task, step);
  if (order_ == nullptr) transfer.stream = nullptr;
  return transfer;
}

Stream* DeviceStep::StreamOf(const Task& task) const {
  return order_ == nullptr ? parts_.memory.stream() : order_->StreamOf(task);
}

Status DeviceStep::FollowStatistics(const Task& task) {
  statistics_task_ = task.info.id;
  if (order_ != nullptr) {
    ENGINE_RETURN_IF_ERROR(order_->Follow(task));
    ENGINE_RETURN_IF_ERROR(parts_.memory.KeepScalars(order_->updates()));
  }
  return TakeStatistics();
}

// On the stream of the updates, which reads the scales.
Status DeviceStep::TakeStatistics() {
  Stream* const stream = order_ == nullptr ? parts_.memory.stream() : order_->updates();
  ENGINE_RETURN_IF_ERROR(accelerator_.math().FillQuotient(
      &parts_.memory.statistics()->count, 1 / parts_.options.loss_scale, scales_.f32(),
      static_cast<int64_t>(gradient_scale_.size()), stream));
  if (!recorded_.recording()) {
    ENGINE_RETURN_IF_ERROR(statistics_->Collect(input_.step, stream));
  }
  return order_ == nullptr ? Status() : order_->MarkTaken();
}

Result<StepResult> DeviceStep::Read() {
  auto read = ReadOf(input_.step - 1);
  longest_step_ns_ = std::max(longest_step_ns_, base::NowNs() - begin_ns_);
  return read;
}

Result<StepResult> DeviceStep::ReadOf(uint64_t step) {
  StepResult result;
  if (!statistics_->has(step)) return result;
  Status status =
      Await(step, [&](int64_t timeout_ms) { return statistics_->Wait(step, timeout_ms); });
  if (status.ok()) status = accelerator_.Fault();
  if (!status.ok()) return status.WithContext("step %llu", static_cast<unsigned long long>(step));
  result.statistics = statistics_->Take(step);
  result.step = step;
  if (parts_.options.rank.world_size == 1) {
    result.statistics.stop = stop_asked_[step % 2] ? 1.0f : 0.0f;
    return result;
  }
  ENGINE_RETURN_IF_ERROR(parts_.order.CheckDigest(result.statistics));
  return result;
}

// All of a flush is queued; whoever asked for it reads memory.
Status DeviceStep::Settle() {
  ENGINE_RETURN_IF_ERROR(Join());
  ENGINE_RETURN_IF_ERROR(Await(now_.step, [&](int64_t timeout_ms) {
    return parts_.memory.stream()->Synchronize(timeout_ms);
  }));
  if (parts_.replicas != nullptr) ENGINE_RETURN_IF_ERROR(parts_.replicas->Settle());
  works_ = false;
  return accelerator_.Fault();
}

// In parts, so that whoever ends the run is heard meanwhile. Transfers in a replay have no deadline
// of their own.
template <typename Wait>
Status DeviceStep::Await(uint64_t step, const Wait& wait) {
  int64_t limit_ms = parts_.options.device_timeout_ms;
  if (recorded_.exists() && order_ != nullptr) {
    limit_ms =
        std::min(limit_ms, parts_.options.timeout_ms + kStepsWaited * longest_step_ns_ / 1'000'000);
  }
  for (int64_t left_ms = limit_ms; left_ms > 0; left_ms -= kLookMs) {
    Status device = wait(std::min(left_ms, kLookMs));
    if (device.code() != StatusCode::kTimeout) return AwaitReport(std::move(device), step);
    ENGINE_RETURN_IF_ERROR(runner_->failure());
  }
  return AwaitReport(
      Status::Error(StatusCode::kTimeout, "the device did not come to its end within %lld ms",
                    static_cast<long long>(limit_ms)),
      step);
}

// After the device has passed the statistics of `step`, of the step at hand all of it, or has
// failed, as `device` says: the failure of a transfer if there was one, which is the cause where
// both fail, else `device`.
Status DeviceStep::AwaitReport(Status device, uint64_t step) {
  const bool alone = order_ == nullptr;
  if (alone && !device.ok()) return device;
  const uint64_t reports = step == now_.step ? StepRunner::kAllSteps : (alone ? 0 : step);
  bool reported = false;
  if (recorded_.exists()) {
    reported = runner_->AwaitReports(reports, device.ok(), kRecordingMs);
    // A communicator that is being aborted says why when that is done: see StepRunner::GiveUp.
    if (!reported) recorded_.Drop();
  }
  if (!reported) {
    reported = runner_->AwaitReports(reports, device.ok(), device.ok() ? kReportMs : kCauseMs);
  }
  ENGINE_RETURN_IF_ERROR(runner_->failure());
  if (reported || !device.ok()) return device;
  return Status::Error(StatusCode::kTimeout,
                       "communicator '%s' did not report within %lld ms the end of a transfer that "
                       "the device has passed",
                       parts_.options.communicator_name.c_str(), static_cast<long long>(kReportMs));
}

Status DeviceStep::KeepStatistics(bool add) {
  StepStatistics* const statistics = parts_.memory.statistics();
  Stream* const stream = parts_.memory.stream();
  if (add) return accelerator_.math().Add(&statistics->loss_sum, scratch_.f32(), 3, stream);
  return parts_.memory.device().Copy(scratch_.data(), statistics, 3 * sizeof(float), stream);
}

// The host's numbers are of no use to the device.
Status DeviceStep::Update(UpdateCall& call, const graph::Parameter& parameter, size_t scale) {
  call.gradient_scale = 1;
  call.learning_rate_scale = parameter.learning_rate_scale;
  call.device_scale = ScaleAt(scale);
  call.scalars = order_ == nullptr ? parts_.memory.scalars() : parts_.memory.scalars(1);
  if (span_updates_ == nullptr) return parts_.plugins.optimizer->Update(call);
  updates_.push_back(call);
  return {};
}

Status DeviceStep::EndUpdates() {
  if (updates_.empty()) return {};
  const Status status = span_updates_->Update(updates_);
  updates_.clear();
  return status;
}

Status DeviceStep::AllReduce(BlockingTransfers& transfers, DType dtype, void* data, int64_t count) {
  const size_t size_bytes = static_cast<size_t>(count) * SizeOf(dtype);
  ENGINE_CHECK(size_bytes <= scratch_.size_bytes(), "%zu bytes", size_bytes);
  Device& device = parts_.memory.device();
  Stream* const stream = parts_.memory.stream();
  ENGINE_RETURN_IF_ERROR(device.Copy(scratch_.data(), data, size_bytes, stream));
  ENGINE_RETURN_IF_ERROR(transfers.Run({.kind = TransferKind::kAllReduce,
                                        .dtype = dtype,
                                        .send = scratch_.data(),
                                        .recv = scratch_.data(),
                                        .count = count,
                                        .stream = stream}));
  ENGINE_RETURN_IF_ERROR(device.Copy(data, scratch_.data(), size_bytes, stream));
  return stream->Synchronize(parts_.options.device_timeout_ms);
}

}  // namespace engine::exec
