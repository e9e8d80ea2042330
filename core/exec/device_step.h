// A step on an accelerator: nothing that it computes is known to the host when the work is queued.
#pragma once

#include <memory>
#include <vector>

#include "core/exec/device_statistics.h"
#include "core/exec/host_step.h"
#include "core/exec/recorded_step.h"

namespace engine::exec {

class DeviceStep final : public HostStep {
 public:
  // kConfig names what cannot work with the memory of the device.
  static Result<std::unique_ptr<DeviceStep>> Create(const StepParts& parts);
  ~DeviceStep() override { End(); }

  Status Drive(double* waited_seconds) override;
  Transfer MakeTransfer(const Task& task, uint64_t step) override;
  bool queues() const override { return true; }
  DeviceOrder* order() override { return order_.get(); }
  Status FollowStatistics(const Task& task) override;
  Result<StepResult> Read() override;
  Result<StepResult> Remaining() override { return ReadOf(now_.step); }
  bool settled() const override { return !works_; }
  Status Settle() override;
  Status AllReduce(BlockingTransfers& transfers, DType dtype, void* data, int64_t count) override;
  void Abandon() override { recorded_.Drop(); }
  void End() noexcept override;

 private:
  DeviceStep(const StepParts& parts, Accelerator& accelerator);
  Status Prepare();
  Status BeginStep() override;
  Status TakeStatistics() override;
  Status KeepStatistics(bool add) override;
  Stream* StreamOf(const Task& task) const override;
  float* ScaleAt(size_t index) override { return scales_.f32() + index; }
  Status Update(UpdateCall& call, const graph::Parameter& parameter, size_t scale) override;
  Status EndUpdates() override;
  Status Join() { return order_ == nullptr ? Status() : order_->Join(); }
  Status Launch();
  Result<StepResult> ReadOf(uint64_t step);
  template <typename Wait>
  Status Await(uint64_t step, const Wait& wait);
  Status AwaitReport(Status device, uint64_t step);

  Accelerator& accelerator_;
  graph::DeviceBuffer scales_;          // gradient_scale_ on the device, and a 1 behind it
  graph::DeviceBuffer scratch_;         // for few floats
  std::unique_ptr<DeviceOrder> order_;  // null with one rank: all is on one stream
  std::unique_ptr<DeviceStatistics> statistics_;
  RecordedStep recorded_;
  SpanUpdates* span_updates_ = nullptr;         // null: one call per span
  std::vector<UpdateCall> updates_;             // of one task
  uint32_t statistics_task_ = trace::kNoTask;   // that has made or summed them up
  bool stop_asked_[2] = {};                     // of even and odd steps, with one rank
  bool works_ = false;                          // perhaps, since it was last waited for
  int64_t begin_ns_ = 0, longest_step_ns_ = 0;  // of Executor::Step
};

}  // namespace engine::exec
