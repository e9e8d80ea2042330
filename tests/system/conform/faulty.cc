// Plugins of four roles that are right but for the fault that their option names.
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include "engine/dataset.h"
#include "engine/optimizer.h"
#include "engine/plugin.h"
#include "kit/bucket_planner.h"
#include "kit/create.h"
#include "kit/options.h"
#include "kit/scheduler.h"

namespace engine::faulty {
namespace {

class FaultyHook final : public GradientHook {
 public:
  explicit FaultyHook(const Options& options) : fault_(options.String("fault")) {}
  HookTraits traits() const noexcept override { return {.scope = HookScope::kSpan}; }
  Status Setup(uint32_t) noexcept override { return {}; }
  Status BeginStep(uint64_t step) noexcept override {
    if (fault_ == "remember") step_ += 1;
    if (fault_ == "by_step") step_ = static_cast<float>(step);  // which is no fault
    return {};
  }
  Status Observe(const GradientView&) noexcept override { return {}; }
  Status Apply(const GradientView& gradient) noexcept override {
    *gradient.scale *= 1 / step_;
    if (gradient.name != "layer.weight") return {};         // as only one test has it
    if (fault_ == "throw") (void)fault_.at(fault_.size());  // which throws
    if (fault_ == "hang") std::this_thread::sleep_for(std::chrono::hours(1));
    if (fault_ == "exit") _exit(0);
    return {};
  }
  std::span<float> Observed() noexcept override { return {}; }

 private:
  const std::string fault_;
  float step_ = 1;
};

// Everything as soon as it is ready, by the parts of the kit.
class FaultyScheduler final : public Scheduler {
 public:
  explicit FaultyScheduler(const Options& options) : fault_(options.String("fault")) {}
  SchedulerTraits traits() const noexcept override { return {}; }
  Status Plan(const ModelInfo& model, PlanSink& sink) noexcept override {
    return kit::PlanBuckets("faulty", model, {}, sink);
  }
  Status Begin(std::span<const TaskInfo> tasks) noexcept override {
    compute_.Reset(tasks.size());
    io_.Reset(tasks, kit::StaticTransferOrder(), [](const TaskInfo& task) {
      return kit::IsPull(task) ? kit::Standing::kFree : kit::Standing::kListed;
    });
    task_count_ = tasks.size();
    return {};
  }
  void On(const SchedulerEvent& event) noexcept override {
    steps_ += event.kind == EventKind::kStepBegin;
    if (event.kind == EventKind::kError) compute_.Clear(), io_.Clear();
    if (event.kind != EventKind::kTaskReady || io_.Take(event.task)) return;
    if (fault_ == "allocate" && steps_ > 4) kept_ = std::vector<uint32_t>(8);
    if (fault_ == "forget" && task_count_ > 70 && event.task == 7) return;
    compute_.Push(event.task);
  }
  Action Next(Lane lane) noexcept override {
    if (lane == Lane::kIo && io_.HeadIsReady()) return kit::Run(io_.Pop());
    const uint32_t task = lane == Lane::kIo ? io_.PopFree() : compute_.Pop();
    return task == kit::kNoTask ? kit::Hold() : kit::Run(task);
  }

 private:
  const std::string fault_;
  kit::ReadyQueue compute_;
  kit::TransferList io_;
  std::vector<uint32_t> kept_;
  size_t task_count_ = 0, steps_ = 0;
};

class FaultyOptimizer final : public Optimizer {
 public:
  explicit FaultyOptimizer(const Options& options) : fault_(options.String("fault")) {}
  OptimizerTraits traits() const noexcept override { return {}; }
  Status Update(const UpdateCall& call) noexcept override {
    // 16 of 16, where nothing but a margin comes after them.
    const bool too_far = fault_ == "overrun" && call.count == 16 && call.value[16] == 12345;
    for (int64_t i = 0; i < call.count + (too_far ? 1 : 0); ++i) {
      call.value[i] -= call.learning_rate * call.gradient_scale * call.gradient[i];
    }
    return {};
  }

 private:
  const std::string fault_;
};

// Sample i is the number i.
class FaultyDataset final : public Dataset {
 public:
  explicit FaultyDataset(const Options& options) : fault_(options.String("fault")) {}
  DatasetInfo info() const noexcept override {
    return {.name = "numbers", .inputs = {&input_, 1}, .train_samples = 20, .digest = "numbers"};
  }
  Status Open(uint64_t) noexcept override { return {}; }
  Status Fill(const FillCall& call) const noexcept override {
    if (call.indices.size() == 1) ++calls_;
    for (size_t i = 0; i < call.indices.size(); ++i) {
      const int64_t number = call.indices[i] + (fault_ == "order" && calls_ > 5 ? 1 : 0);
      static_cast<float*>(call.tensors[0])[i] = static_cast<float>(number);
    }
    return {};
  }

 private:
  const SampleTensor input_{.name = "number", .shape = {1}};
  const std::string fault_;
  mutable int calls_ = 0;
};

}  // namespace

extern "C" ENGINE_PLUGIN_EXPORT constexpr auto ENGINE_PLUGIN_SYMBOL =
    DescribePlugin({.name = FIXTURE_NAME,
                    .version = "1.0.0",
                    .kind = PluginKind::FIXTURE_KIND,
                    .doc = "right but for one fault",
                    .create = kit::Create<FIXTURE_CLASS>},
                   NoOps(), std::array{kit::StringOption("fault", "", "see the code")});

}  // namespace engine::faulty
