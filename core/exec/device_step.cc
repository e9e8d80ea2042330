// A step on an accelerator: nothing that it computes is known to the host when the work is queued.
//
// * Scales of gradients are numbers in device memory, which the device derives from the statistics
//   of the step, and which hooks and updates read there.
// * Statistics are copied to the host on their way; Read gives those of the step before, so that
//   the device always has work. Two copies, of even and odd steps: step t is read while step t+1 is
//   queued, and its copy is written again by step t+2, which is queued after that.
// * A task ends when its work is queued, and a transfer when it is submitted; the device keeps the
//   order (DeviceOrder). So Drive queues all of a step, on the thread of the rank, and the threads
//   of the communicator only report how transfers ended: a failure ends the run, and statistics,
//   and what Settle makes visible, count only when all transfers before them were reported.
// * The work of a step can be recorded once and then replayed (CUDA graphs), with the transfers of
//   several ranks in it, which are reported by one that moves nothing, behind it. What is recorded
//   begins and ends with everything on one stream, so a replay does not overlap with the step
//   before it. It holds addresses, so it is good as long as the memory of the model is, and sizes,
//   so it is good for batches of as many samples: a step of another size is run as ever. Only one
//   is kept, of the largest batch seen so far.
#include <algorithm>
#include <functional>
#include <memory>
#include <new>
#include <utility>
#include <vector>

#include "core/base/clock.h"
#include "core/exec/device_order.h"
#include "core/exec/step_runner.h"
#include "engine/ext/recorded_transfers.h"

namespace engine::exec {
namespace {

// For a communicator to report what the device has passed, and the cause when the device has
// failed.
constexpr int64_t kReportMs = 5000, kCauseMs = 1000, kRecordingMs = 1000;
constexpr int64_t kLookMs = 100;
// A replay that hangs is given up after the deadline of a transfer and so many of the longest
// steps.
constexpr int64_t kStepsWaited = 10;
// For queued work to end, before its memory is freed.
constexpr int64_t kEndMs = 10000;
// Steps before a recording: ops choose algorithms and allocate in the first ones.
constexpr uint64_t kWarmUpSteps = 3;
// Of the statistics, those that the loss op makes.
constexpr int64_t kLossNumbers = 3;

class DeviceStep final : public HostStep {
 public:
  DeviceStep(const StepParts& parts, Accelerator& accelerator)
      : HostStep(parts),
        accelerator_(accelerator),
        device_(parts.memory.device()),
        stream_(parts.memory.stream()),
        alone_(parts.options.rank.world_size == 1) {}

  ~DeviceStep() override {
    End();
    for (Copy& copy : copies_) accelerator_.FreeHost(copy.statistics);
  }

  Status Prepare() {
    const size_t scales = gradient_scale_.size() + 1;
    ENGINE_ASSIGN_OR_RETURN(scales_,
                            graph::DeviceBuffer::Create(device_, scales * sizeof(float), stream_));
    const float one = 1;
    ENGINE_RETURN_IF_ERROR(
        device_.Copy(ScaleAt(gradient_scale_.size()), &one, sizeof(one), stream_));
    for (Copy& copy : copies_) {
      void* pinned = nullptr;
      ENGINE_RETURN_IF_ERROR(accelerator_.AllocateHost(sizeof(StepStatistics), &pinned));
      if (pinned == nullptr) return graph::MadeNothing(device_);
      copy.statistics = new (pinned) StepStatistics;
      ENGINE_RETURN_IF_ERROR(graph::Make(device_, &copy.copied));
    }
    span_updates_ = Query<SpanUpdates>(*parts_.plugins.optimizer);
    ENGINE_ASSIGN_OR_RETURN(order_, DeviceOrder::Create(device_, stream_, parts_.tasks, alone_));
    return {};
  }

  Result<StepResult> Step(const StepInput& input) override {
    const int64_t begin_ns = base::NowNs();
    ENGINE_RETURN_IF_ERROR(Begin(input));
    ENGINE_RETURN_IF_ERROR(Drive());
    auto read = ReadOf(input_.step - 1);
    longest_step_ns_ = std::max(longest_step_ns_, base::NowNs() - begin_ns);
    return read;
  }

  Status Run(const Task& task) override {
    ENGINE_RETURN_IF_ERROR(order_->Wait(task));
    ENGINE_RETURN_IF_ERROR(HostStep::Run(task));
    return order_->Mark(task);
  }

  // With one rank all stays where it is, also in a recording.
  Transfer MakeTransfer(const Task& task, uint64_t step) override {
    Transfer transfer = HostStep::MakeTransfer(task, step);
    if (alone_) transfer.stream = nullptr;
    return transfer;
  }

  bool queues() const override { return true; }

  Status BeginTransfer(const Task& task, Stream** follower) override {
    *follower = order_->transfers();
    return order_->Wait(task);
  }

  Status EndTransfer(const Task& task) override {
    ENGINE_RETURN_IF_ERROR(order_->Mark(task));
    if (task.data != TransferData::kStatistics) return {};
    statistics_task_ = task.info.id;
    ENGINE_RETURN_IF_ERROR(order_->Follow(task));
    if (!alone_) ENGINE_RETURN_IF_ERROR(parts_.memory.KeepScalars(order_->updates()));
    return TakeStatistics();
  }

  Result<StepResult> Remaining() override { return ReadOf(now_.step); }
  bool settled() const override { return !works_; }

  // All of a flush is queued; whoever asked for it reads memory.
  Status Settle() override {
    ENGINE_RETURN_IF_ERROR(order_->Join());
    ENGINE_RETURN_IF_ERROR(
        Await(now_.step, [&](int64_t timeout_ms) { return stream_->Synchronize(timeout_ms); }));
    if (parts_.replicas != nullptr) ENGINE_RETURN_IF_ERROR(parts_.replicas->Settle());
    works_ = false;
    return accelerator_.Fault();
  }

  void Abandon() override { recorded_.reset(); }

  void End() noexcept override {
    if (order_ != nullptr) (void)order_->Join();
    (void)stream_->Synchronize(kEndMs);
  }

 private:
  struct Copy {
    StepStatistics* statistics = nullptr;  // pinned
    std::unique_ptr<Event> copied;
    uint64_t step = 0;  // 0: read, or never written
  };

  // On the stream of the updates, which reads the scales.
  Status TakeStatistics() override {
    ENGINE_RETURN_IF_ERROR(accelerator_.math().FillQuotient(
        &summed()->count, 1 / loss_scale_, scales_.f32(),
        static_cast<int64_t>(gradient_scale_.size()), order_->updates()));
    if (!recording_) ENGINE_RETURN_IF_ERROR(Collect(order_->updates()));
    return order_->MarkTaken();
  }

  Status KeepStatistics(bool add) override {
    StepStatistics *const made = parts_.memory.statistics(), *const sum = summed();
    if (!add) return device_.Copy(sum, made, sizeof(StepStatistics), stream_);
    return accelerator_.math().Add(&sum->loss_sum, &made->loss_sum, kLossNumbers, stream_);
  }

  Stream* StreamOf(const Task& task) const override { return order_->StreamOf(task); }
  float* ScaleAt(size_t index) override { return scales_.f32() + index; }

  // The host's numbers are of no use to the device.
  Status Update(UpdateCall& call, const graph::Parameter& parameter, size_t scale) override {
    call.gradient_scale = 1;
    call.learning_rate_scale = parameter.learning_rate_scale;
    call.device_scale = ScaleAt(scale);
    call.scalars = parts_.memory.scalars(alone_ ? 0 : 1);
    if (span_updates_ == nullptr) return parts_.plugins.optimizer->Update(call);
    updates_.push_back(call);
    return {};
  }

  Status EndUpdates() override {
    if (updates_.empty()) return {};
    const Status status = span_updates_->Update(updates_);
    updates_.clear();
    return status;
  }

  // Before anything of the step is queued. What the host adds to the statistics of this rank lies
  // behind those that the loss op makes.
  Status Begin(const StepInput& input) {
    works_ = true;
    stop_asked_[input.step % 2] = input.stop;
    ENGINE_RETURN_IF_ERROR(order_->WaitTaken());
    if (!alone_) {
      const float stop = input.stop ? 1.0f : 0.0f;
      ENGINE_RETURN_IF_ERROR(
          device_.Copy(&parts_.memory.statistics()->stop, &stop, sizeof(stop), stream_));
    }
    return HostStep::Begin(input);
  }

  // No forward task comes before all of the tail is done, so all of a step is queued. Whether it is
  // recorded is the same on all ranks, as a communicator may send otherwise what is recorded.
  Status Drive() {
    ++steps_;
    most_samples_ = std::max(most_samples_, input_.all_samples);
    ENGINE_RETURN_IF_ERROR(runner_->Begin(input_.step));
    if (recorded_ != nullptr && input_.all_samples == recorded_samples_) {
      ENGINE_RETURN_IF_ERROR(order_->Join());
      return Replay();
    }
    if (parts_.options.record_steps && recorded_ == nullptr && steps_ > kWarmUpSteps &&
        input_.all_samples == most_samples_) {
      ENGINE_RETURN_IF_ERROR(Record());
      return Replay();
    }
    ENGINE_RETURN_IF_ERROR(runner_->RunHead());
    return runner_->RunTail();
  }

  // Ends the recording in any case. What is queued meanwhile is not done.
  Status Record() {
    ENGINE_RETURN_IF_ERROR(order_->Join());
    ENGINE_RETURN_IF_ERROR(accelerator_.BeginRecording(stream_));
    recording_ = true;
    Status status = runner_->RunHead();
    if (status.ok()) status = runner_->RunTail();
    if (status.ok()) status = order_->Join();
    recording_ = false;
    Recording* recorded = nullptr;
    const Status ended = accelerator_.EndRecording(stream_, &recorded);
    recorded_.reset(recorded);
    recorded_samples_ = input_.all_samples;
    ENGINE_RETURN_IF_ERROR(status.ok() ? ended : status);
    return recorded != nullptr ? Status() : graph::MadeNothing(device_);
  }

  // A transfer of nothing behind it reports those in the recording.
  Status Replay() {
    ENGINE_RETURN_IF_ERROR(recorded_->Launch(stream_));
    ENGINE_RETURN_IF_ERROR(Collect(stream_));
    return alone_ ? Status() : runner_->ReportReplay(statistics_task_);
  }

  // Queues a copy of the statistics of the step at hand.
  Status Collect(Stream* stream) {
    Copy& copy = copies_[input_.step % 2];
    copy.step = input_.step;
    ENGINE_RETURN_IF_ERROR(device_.Copy(copy.statistics, summed(), sizeof(StepStatistics), stream));
    return stream->Record(copy.copied.get());
  }

  // Of a step whose statistics were collected and not read; else nothing.
  Result<StepResult> ReadOf(uint64_t step) {
    StepResult result;
    Copy& copy = copies_[step % 2];
    if (step == 0 || copy.step != step) return result;
    Status status =
        Await(step, [&](int64_t timeout_ms) { return copy.copied->WaitHost(timeout_ms); });
    if (status.ok()) status = accelerator_.Fault();
    if (!status.ok()) return status.WithContext("step %llu", static_cast<unsigned long long>(step));
    copy.step = 0;
    result.step = step;
    result.statistics = *copy.statistics;
    if (alone_) result.statistics.stop = stop_asked_[step % 2] ? 1.0f : 0.0f;
    return result;
  }

  // In parts, so that whoever ends the run is heard meanwhile. Transfers in a replay have no deadline
  // of their own.
  Status Await(uint64_t step, const std::function<Status(int64_t timeout_ms)>& wait) {
    int64_t limit_ms = parts_.options.device_timeout_ms;
    if (recorded_ != nullptr && !alone_) {
      limit_ms = std::min(limit_ms,
                          parts_.options.timeout_ms + kStepsWaited * longest_step_ns_ / 1'000'000);
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
  Status AwaitReport(Status device, uint64_t step) {
    if (alone_ && !device.ok()) return device;
    const uint64_t reports = step == now_.step ? StepRunner::kAllSteps : (alone_ ? 0 : step);
    bool reported = false;
    if (recorded_ != nullptr) {
      reported = runner_->AwaitReports(reports, device.ok(), kRecordingMs);
      // A communicator that is being aborted says why when that is done: see StepRunner::GiveUp.
      if (!reported) recorded_.reset();
    }
    if (!reported) {
      reported = runner_->AwaitReports(reports, device.ok(), device.ok() ? kReportMs : kCauseMs);
    }
    ENGINE_RETURN_IF_ERROR(runner_->failure());
    if (reported || !device.ok()) return device;
    return Status::Error(StatusCode::kTimeout,
                         "communicator '%s' did not report within %lld ms the end of a transfer "
                         "that the device has passed",
                         parts_.options.communicator_name.c_str(),
                         static_cast<long long>(kReportMs));
  }

  Accelerator& accelerator_;
  Device& device_;
  Stream* const stream_;
  const bool alone_;  // all is on one stream
  // gradient_scale_ on the device, and a 1 behind it.
  graph::DeviceBuffer scales_;
  std::unique_ptr<DeviceOrder> order_;
  Copy copies_[2];
  SpanUpdates* span_updates_ = nullptr;        // null: one call per span
  std::vector<UpdateCall> updates_;            // of one task
  uint32_t statistics_task_ = trace::kNoTask;  // that has summed them up
  bool stop_asked_[2] = {};                    // of even and odd steps, with one rank
  bool works_ = false;                         // perhaps, since it was last waited for
  int64_t longest_step_ns_ = 0;

  std::unique_ptr<Recording> recorded_;
  bool recording_ = false;
  uint64_t steps_ = 0;
  int64_t most_samples_ = 0, recorded_samples_ = 0;  // of all ranks
};

// Whether the work of the run can be recorded, if that is asked for.
Status CheckRecording(const StepParts& parts) {
  if (!parts.options.record_steps || parts.options.rank.world_size == 1) return {};
  if (parts.replicas != nullptr) {
    return Status::Error(StatusCode::kConfig,
                         "train.record_steps with several ranks is not for models whose ops see "
                         "the batch of all ranks (batch_norm with sync): set one of them to false");
  }
  if (Query<RecordedTransfers>(*parts.plugins.communicator) != nullptr) return {};
  return Status::Error(StatusCode::kConfig,
                       "train.record_steps with several ranks needs a communicator whose transfers "
                       "can be recorded, and those of '%s' cannot: set it to false or choose "
                       "another communicator",
                       parts.options.communicator_name.c_str());
}

}  // namespace

Result<std::unique_ptr<HostStep>> MakeDeviceStep(const StepParts& parts) {
  if (parts.plugins.communicator->traits().device_memory == 0) {
    return Status::Error(StatusCode::kConfig,
                         "communicator '%s' moves host memory only, but the ops run on '%s': "
                         "choose a communicator for the memory of that device",
                         parts.options.communicator_name.c_str(), parts.plugins.device->type());
  }
  ENGINE_RETURN_IF_ERROR(CheckRecording(parts));
  auto step = std::make_unique<DeviceStep>(parts, *parts.memory.accelerator());
  ENGINE_RETURN_IF_ERROR(step->Prepare());
  return std::unique_ptr<HostStep>(std::move(step));
}

}  // namespace engine::exec
