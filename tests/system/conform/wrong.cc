// Plugins of some roles that are right but for the fault that their option names.
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "engine/dataset.h"
#include "engine/ext/saved_state.h"
#include "engine/ext/wire_format.h"
#include "engine/optimizer.h"
#include "engine/plugin.h"
#include "kit/bucket_planner.h"
#include "kit/create.h"
#include "kit/options.h"
#include "kit/scheduler.h"

namespace engine::faulty {
namespace {

class FaultyHook final : public GradientHookBase, public SavedStateBase {
 public:
  explicit FaultyHook(const Options& options) : fault_(options.String("fault")) {}
  HookTraits traits() const noexcept override { return {.scope = HookScope::kSpan}; }
  Status Setup(uint32_t) noexcept override { return {}; }
  Status BeginStep(uint64_t step) noexcept override {
    if (fault_ == "remember" || saves()) step_ += 1;
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

  void* Query(std::string_view id) noexcept override {
    return saves() && id == SavedState::kId ? static_cast<SavedState*>(this) : nullptr;
  }
  uint32_t state_version() const noexcept override { return 1; }
  Status SaveState(void (*sink)(void*, const uint8_t*, uint64_t), void* context) noexcept override {
    sink(context, reinterpret_cast<const uint8_t*>(&step_), sizeof step_);
    return {};
  }
  Status LoadState(std::span<const uint8_t> state) noexcept override {
    const StatusCode code = fault_ == "save_wrong" ? StatusCode::kInternal : StatusCode::kBadData;
    if (state.size() != sizeof step_) return Status::Error(code, "not 4 bytes");
    std::memcpy(&step_, state.data(), sizeof step_);
    return {};
  }

 private:
  bool saves() const { return fault_.starts_with("save"); }

  const std::string fault_;
  float step_ = 1;
};

// Signs, one byte each, with the mean of all; what is lost is kept for the next step.
class FaultyWire final : public WireHook {
 public:
  explicit FaultyWire(const Options& options) : loses_(options.String("fault") == "lose") {}
  WireTraits wire_traits() const noexcept override {
    return {.kind = WireKind::kPacked, .state_count = 1, .state_names = {"error"}};
  }
  int64_t PackedBytes(int64_t count) const noexcept override { return count + 4; }
  Status Pack(const WireCall& call) noexcept override {
    float mean = 0, *const error = call.states[0];
    for (int64_t i = 0; i < call.count; ++i) {
      error[i] += call.gradient[i] * *call.scale;
      mean += std::fabs(error[i]) / static_cast<float>(call.count);
    }
    const float sent = mean / *call.scale;
    auto* const bytes = static_cast<uint8_t*>(call.wire);
    std::memcpy(bytes, &sent, sizeof sent);
    for (int64_t i = 0; i < call.count; ++i) {
      bytes[4 + i] = error[i] < 0;
      error[i] = loses_ ? 0 : error[i] - (error[i] < 0 ? -mean : mean);
    }
    return {};
  }
  Status Unpack(const WireCall& call) noexcept override {
    float mean = 0;
    const auto* const bytes = static_cast<const uint8_t*>(call.wire);
    std::memcpy(&mean, bytes, sizeof mean);
    for (int64_t i = 0; i < call.count; ++i) {
      const float before = call.accumulate != 0 ? call.gradient[i] : 0;
      call.gradient[i] = before + (bytes[4 + i] != 0 ? -mean : mean);
    }
    return {};
  }

 private:
  const bool loses_;
};

struct ByNeed {
  bool operator()(const TaskInfo& a, const TaskInfo& b) const noexcept {
    return std::pair(a.needed_by, a.id) < std::pair(b.needed_by, b.id);
  }
};

// Everything as soon as it is ready. With the fault "credit" one transfer at a time, pulls and pushes
// alike, by need.
class FaultyScheduler final : public SchedulerBase {
 public:
  explicit FaultyScheduler(const Options& options)
      : fault_(options.String("fault")), credit_(fault_ == "credit") {}
  SchedulerTraits traits() const noexcept override {
    return {.order = credit_ ? TransferOrder::kLeader : TransferOrder::kStatic};
  }
  Status Plan(const ModelInfo& model, PlanSink& sink) noexcept override {
    return kit::PlanBuckets("faulty", model, {}, sink);
  }
  Status Begin(Array<const TaskInfo> tasks) noexcept override {
    tasks_.assign(tasks.begin(), tasks.end());
    compute_.Reset(tasks.size());
    by_need_.Reset(tasks, ByNeed());
    io_.Reset(tasks, kit::StaticTransferOrder(), [](const TaskInfo& task) {
      return kit::IsPull(task) ? kit::Standing::kFree : kit::Standing::kListed;
    });
    return {};
  }
  void On(const SchedulerEvent& event) noexcept override {
    steps_ += event.kind == EventKind::kStepBegin;
    if (event.kind == EventKind::kError) {
      compute_.Clear(), io_.Clear(), by_need_.Clear();
      busy_ = false;
    }
    const bool io = tasks_[event.task].lane == Lane::kIo;
    if (io && event.kind == EventKind::kTaskStarted) by_need_.Erase(event.task);
    if (io && event.kind == EventKind::kTaskStarted) busy_ = true;
    if (io && event.kind == EventKind::kTaskDone) busy_ = false;
    if (event.kind != EventKind::kTaskReady) return;
    if (credit_ && io) return by_need_.Insert(event.task);
    if (io_.Take(event.task)) return;
    if (fault_ == "allocate" && steps_ > 4) kept_ = std::vector<uint32_t>(8);
    if (fault_ == "forget" && tasks_.size() > 70 && event.task == 7) return;
    compute_.Push(event.task);
  }
  Action Next(Lane lane) noexcept override {
    if (lane == Lane::kIo && io_.HeadIsReady()) return kit::Run(io_.Pop());
    uint32_t task = lane == Lane::kIo ? io_.PopFree() : compute_.Pop();
    if (lane == Lane::kIo && credit_) task = busy_ ? kit::kNoTask : by_need_.Pop();
    busy_ |= lane == Lane::kIo && task != kit::kNoTask;
    return task == kit::kNoTask ? kit::Hold() : kit::Run(task);
  }

 private:
  const std::string fault_;
  const bool credit_;
  std::vector<TaskInfo> tasks_;
  kit::ReadyQueue compute_;
  kit::ReadySet by_need_;
  kit::TransferList io_;
  std::vector<uint32_t> kept_;
  size_t steps_ = 0;
  bool busy_ = false;
};

class FaultyOptimizer final : public OptimizerBase {
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
class FaultyDataset final : public DatasetBase {
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
