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
  HookTraits traits() const noexcept override {
    return {.scope = fault_ == "global" ? HookScope::kGlobal : HookScope::kSpan};
  }
  Status Setup(uint32_t) noexcept override { return {}; }
  Status BeginStep(uint64_t step) noexcept override {
    if (fault_ == "remember" || saves()) step_ += 1;
    if (fault_ == "by_step") step_ = static_cast<float>(step);  // which is no fault
    if (fault_ == "global") step_ = 1;
    return {};
  }
  Status Observe(const GradientView& gradient) noexcept override {  // and tells no other rank
    step_ += static_cast<float>(gradient.count);
    return {};
  }
  Status Apply(const GradientView& gradient) noexcept override {
    *gradient.scale *= 1 / step_;
    if (fault_ == "infinite") *gradient.scale = HUGE_VALF;
    if (fault_ == "order" && ++calls_ % 2 == 0) *gradient.scale *= 2;
    if (gradient.name != "layer.weight") return {};         // as only one test has it
    if (fault_ == "throw") (void)fault_.at(fault_.size());  // which throws
    if (fault_ == "hang") std::this_thread::sleep_for(std::chrono::hours(1));
    if (fault_ == "exit") _exit(0);
    return {};
  }
  std::span<float> Observed() noexcept override { return {}; }

  void* Query(std::string_view id) noexcept override {
    if (fault_ == "extension" && id.empty()) return this;
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
    if (fault_ != "save_lose") std::memcpy(&step_, state.data(), sizeof step_);
    return {};
  }

 private:
  bool saves() const { return fault_.starts_with("save"); }

  const std::string fault_;
  float step_ = 1;
  int calls_ = 0;
};

// Signs, one byte each, with the mean of all; what is lost is kept for the next step.
class FaultyWire final : public WireHook {
 public:
  explicit FaultyWire(const Options& options) : fault_(options.String("fault")) {}
  WireTraits wire_traits() const noexcept override {
    WireTraits traits{.kind = WireKind::kPacked, .state_count = 1};
    if (fault_ != "name") traits.state_names[0] = "error";
    return traits;
  }
  int64_t PackedBytes(int64_t count) const noexcept override { return count + 4; }
  Status Pack(const WireCall& call) noexcept override {
    float mean = 0, *const error = call.states[0];
    for (int64_t i = 0; i < call.count; ++i) {
      error[i] += call.gradient[i] * (fault_ == "unit" ? 1 : *call.scale) + remembered_;
      mean += std::fabs(error[i]) / static_cast<float>(call.count);
    }
    if (fault_ == "remember") remembered_ += 1;
    const float sent = mean / *call.scale;
    auto* const bytes = static_cast<uint8_t*>(call.wire);
    std::memcpy(bytes, &sent, sizeof sent);
    for (int64_t i = 0; i < call.count; ++i) {
      if (fault_ != "leave" || i > 0) bytes[4 + i] = error[i] < 0;
      error[i] = fault_ == "lose" ? 0 : error[i] - (error[i] < 0 ? -mean : mean);
    }
    return {};
  }
  Status Unpack(const WireCall& call) noexcept override {
    float mean = 0;
    const bool adds = fault_ == "add" || (call.accumulate != 0 && fault_ != "replace");
    if (fault_ == "refuse") return Status::Error(StatusCode::kInternal, "something is wrong");
    const auto* const bytes = static_cast<const uint8_t*>(call.wire);
    std::memcpy(&mean, bytes, sizeof mean);
    for (int64_t i = 0; i < call.count; ++i) {
      const float before = adds ? call.gradient[i] : 0;
      call.gradient[i] = before + (bytes[4 + i] != 0 ? -mean : mean);
    }
    return {};
  }

 private:
  const std::string fault_;
  float remembered_ = 0;
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
      : fault_(options.String("fault")), credit_(fault_ == "credit" || fault_ == "static") {}
  SchedulerTraits traits() const noexcept override {
    return {.order = fault_ == "credit" ? TransferOrder::kLeader : TransferOrder::kStatic};
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
    if (event.kind == EventKind::kError && fault_ != "error") {
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
    if (lifo()) return stack_.push_back(event.task);
    if (fault_ == "forget" && tasks_.size() > 70 && event.task == 7) return;
    compute_.Push(event.task);
  }
  Action Next(Lane lane) noexcept override {
    if (lane == Lane::kIo && io_.HeadIsReady()) return kit::Run(io_.Pop());
    uint32_t task = lane == Lane::kIo ? io_.PopFree() : compute_.Pop();
    if (lane == Lane::kCompute && task == kit::kNoTask && !stack_.empty()) {
      task = stack_.back();
      stack_.pop_back();
    }
    if (lane == Lane::kIo && credit_) task = busy_ ? kit::kNoTask : by_need_.Pop();
    busy_ |= lane == Lane::kIo && task != kit::kNoTask;
    return task == kit::kNoTask ? kit::Hold() : kit::Run(task);
  }

 private:
  // Takes what is ready from the other end: in every second step, or as every second object.
  bool lifo() const {
    return (fault_ == "steps" && steps_ % 2 == 0) || (fault_ == "objects" && number_ % 2 == 0);
  }

  static inline int objects = 0;
  const std::string fault_;
  const bool credit_;
  const int number_ = objects++;
  std::vector<uint32_t> stack_;
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
  OptimizerTraits traits() const noexcept override {
    return {.state_count = fault_ == "state" ? 1 : 0};
  }
  Status Update(const UpdateCall& call) noexcept override {
    // 16 of 16, where nothing but a margin comes after them.
    const bool too_far = fault_ == "overrun" && call.count == 16 && call.value[16] == 12345;
    if (fault_ == "empty" && call.count == 0) return Status::Error(StatusCode::kConfig, "nothing");
    float rate = call.learning_rate * (fault_ == "scale" ? 1 : call.gradient_scale);
    if (fault_ == "up") rate = -rate;
    if (fault_ == "cut" && call.count % 2 == 0) rate *= 2;
    if (fault_ == "remember") rate *= static_cast<float>(++calls_);
    for (int64_t i = 0; i < call.count + (too_far ? 1 : 0); ++i) {
      call.value[i] -= rate * call.gradient[i] + (fault_ == "decay" ? 0.25f : 0);
    }
    return {};
  }

 private:
  const std::string fault_;
  int calls_ = 0;
};

// Sample i is the number i.
class FaultyDataset final : public DatasetBase {
 public:
  explicit FaultyDataset(const Options& options) : fault_(options.String("fault")) {
    if (fault_ == "classes") input_.dtype = DType::kInt32, input_.classes = 5;
  }
  DatasetInfo info() const noexcept override {
    return {.name = "numbers",
            .inputs = {&input_, 1},
            .train_samples = 20,
            .digest = fault_ == "digest" ? "two words" : "numbers"};
  }
  Status Open(uint64_t) noexcept override { return {}; }
  Status Fill(const FillCall& call) const noexcept override {
    if (call.indices.size() == 1) ++calls_;
    if (call.indices.empty() && fault_ == "none") static_cast<float*>(call.tensors[0])[0] = 1;
    for (size_t i = 0; i < call.indices.size(); ++i) {
      const int64_t number = call.indices[i] + (fault_ == "order" && calls_ > 5 ? 1 : 0);
      static_cast<float*>(call.tensors[0])[i] = static_cast<float>(number);
    }
    return {};
  }

 private:
  SampleTensor input_{.name = "number", .shape = {1}};
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
