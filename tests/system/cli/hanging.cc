// A plugin of any role, as FIXTURE_KIND and FIXTURE_CLASS say, that works but for one rank, where it
// never returns from one of the calls that its options name, and fails in the other.
#include <chrono>
#include <cstring>
#include <deque>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "engine/plugin.h"
#include "kit/create.h"
#include "kit/dataset.h"
#include "kit/model.h"
#include "kit/options.h"

namespace engine::hanging {
namespace {

struct Trap {
  Trap(Host& host, const Options& options)
      : is_set(host.rank_info().rank == options.Int("rank")),
        hangs(options.String("call")),
        fails(options.String("fail")) {}
  Status At(std::string_view call) const {
    while (is_set && call == hangs) std::this_thread::sleep_for(std::chrono::hours(1));
    if (!is_set || call != fails) return {};
    return Status::Error(StatusCode::kBadData, "a planned failure");
  }
  bool is_set;
  std::string hangs, fails;
};

template <typename Role>
class Hanging : public Role {
 public:
  template <typename... Arguments>
  explicit Hanging(Trap trap, Arguments&&... arguments)
      : Role(std::forward<Arguments>(arguments)...), trap_(std::move(trap)) {}
  ~Hanging() override { (void)trap_.At("destructor"); }

 protected:
  const Trap trap_;
};

class HangingHook final : public Hanging<GradientHook> {
 public:
  using Hanging::Hanging;
  HookTraits traits() const noexcept override { return {.stage = HookStage::kReduced}; }
  Status Setup(uint32_t) noexcept override { return trap_.At("Setup"); }
  Status BeginStep(uint64_t) noexcept override { return trap_.At("BeginStep"); }
  Status Observe(const GradientView&) noexcept override { return {}; }
  Status Apply(const GradientView&) noexcept override { return trap_.At("Apply"); }
  std::span<float> Observed() noexcept override { return {}; }
};

class HangingOptimizer final : public Hanging<Optimizer> {
 public:
  using Hanging::Hanging;
  OptimizerTraits traits() const noexcept override { return {}; }
  Status Update(const UpdateCall&) noexcept override { return trap_.At("Update"); }
};

class HangingDataset final : public Hanging<kit::ReadDataset> {
 public:
  explicit HangingDataset(Trap trap)
      : Hanging(std::move(trap), "hanging_dataset", SampleTensor{.name = "point", .shape = {8}},
                SampleTensor{.name = "class", .dtype = DType::kInt32, .classes = 4}) {}
  Status Fill(const FillCall& call) const noexcept override {
    std::memset(call.tensors[0], 0, call.indices.size() * 8 * sizeof(float));
    std::memset(call.tensors[1], 0, call.indices.size() * sizeof(int32_t));
    return trap_.At(call.epoch < 2 ? "Fill" : "Ahead");
  }

 private:
  Status Read() override {
    train_samples_ = held_out_samples_ = 16;
    return trap_.At("Open");
  }
};

class HangingModel final : public Hanging<Model> {
 public:
  using Hanging::Hanging;
  Status Build(ModelBuilder& builder) const noexcept override {
    ENGINE_RETURN_IF_ERROR(trap_.At("Build"));
    ENGINE_ASSIGN_OR_RETURN(const ModelValue x,
                            kit::Apply(builder, "", "linear", {0}, {kit::Int("units", 4)}));
    return kit::PredictTarget(builder, x, "softmax_cross_entropy");
  }
};

// The op `hanging`: its output is its input.
class HangingOp final : public Hanging<Op> {
 public:
  using Hanging::Hanging;
  Status Infer(Array<const TensorSpec> inputs, OpSignature* signature) noexcept override {
    signature->output_count = 1;
    signature->differentiable_inputs = 1;
    signature->outputs[0] = inputs[0];
    return trap_.At("Infer");
  }
  Status Forward(const OpCall& call) noexcept override {
    return Copy(trap_.At(call.training != 0 ? "Forward" : "Evaluation"), call.inputs[0],
                call.outputs[0]);
  }
  Status Backward(const OpCall& call) noexcept override {
    return Copy(trap_.At("Backward"), call.output_grads[0], call.input_grads[0]);
  }

 private:
  static Status Copy(Status status, const TensorView& from, const TensorView& to) {
    if (to.data != nullptr) std::memmove(to.data, from.data, to.size_bytes());
    return status;
  }
};

class HangingOps final : public Hanging<OpLibrary> {
 public:
  using Hanging::Hanging;
  Device* device() noexcept override { return nullptr; }
  Status CreateOp(std::string_view, const Options&, Op** out) noexcept override {
    ENGINE_RETURN_IF_ERROR(trap_.At("CreateOp"));
    Trap of_op = trap_;
    if (of_op.hangs == "destructor") of_op.hangs.clear();  // of the library
    return *out = new HangingOp(of_op), Status();
  }
};

// Moves nothing, as of a rank that is alone.
class HangingCommunicator final : public Hanging<Communicator> {
 public:
  using Hanging::Hanging;
  CommunicatorTraits traits() const noexcept override {
    return {.kinds = 31, .dtypes = 31, .ordered = 0, .no_op = 1};
  }
  Status Submit(const Transfer&, Work** out) noexcept override {
    ENGINE_RETURN_IF_ERROR(trap_.At("Submit"));
    return *out = new DoneWork(trap_), Status();
  }
  void Abort(const Status&) noexcept override { (void)trap_.At("Abort"); }

 private:
  class DoneWork final : public WorkBase {
   public:
    explicit DoneWork(const Trap& trap) : trap_(trap) {}
    WorkState state() const noexcept override { return WorkState::kDone; }
    int64_t started_ns() const noexcept override { return 0; }
    Status WaitHost(int64_t) noexcept override { return trap_.At("WaitHost"); }
    Status WaitStream(Stream*) noexcept override { return {}; }
    void OnDone(void (*callback)(void*), void* context) noexcept override { callback(context); }
    void Release() noexcept override { delete this; }

   private:
    const Trap trap_;
  };
};

// Everything as soon as it is ready.
class HangingScheduler final : public Hanging<Scheduler> {
 public:
  using Hanging::Hanging;
  SchedulerTraits traits() const noexcept override { return {}; }
  Status Plan(const ModelInfo& model, PlanSink& sink) noexcept override {
    for (const ParameterInfo& parameter : model.parameters) {
      const BucketSpan span{.parameter = parameter.id, .count = parameter.count};
      sink.AddBucket({&span, 1}, 0, BucketStages::kAllReduce);
    }
    return trap_.At("Plan");
  }
  Status Begin(Array<const TaskInfo> tasks) noexcept override {
    for (const TaskInfo& task : tasks) lanes_.push_back(task.lane);
    return trap_.At("Begin");
  }
  void On(const SchedulerEvent& event) noexcept override {
    (void)trap_.At("On");
    if (event.kind == EventKind::kTaskReady) ready(lanes_[event.task]).push_back(event.task);
  }
  Action Next(Lane lane) noexcept override {
    (void)trap_.At("Next");
    if (ready(lane).empty()) return {};
    const Action action{ActionKind::kRun, ready(lane).front()};
    ready(lane).pop_front();
    return action;
  }

 private:
  std::deque<uint32_t>& ready(Lane lane) { return ready_[lane == Lane::kIo]; }
  std::vector<Lane> lanes_;
  std::deque<uint32_t> ready_[2];
};

constexpr auto OpNames() noexcept {
  if constexpr (PluginKind::FIXTURE_KIND == PluginKind::kOps)
    return std::array{OpName("hanging")};
  else
    return NoOps();
}

StatusValue Create(Host& host, const Options& options, Object** out) noexcept {
  const Trap trap(host, options);
  ENGINE_RETURN_IF_ERROR(trap.At("create"));
  return kit::Make<FIXTURE_CLASS>(out, trap);
}

}  // namespace

extern "C" ENGINE_PLUGIN_EXPORT constexpr auto ENGINE_PLUGIN_SYMBOL =
    DescribePlugin({.name = FIXTURE_NAME,
                    .version = "1.0.0",
                    .kind = PluginKind::FIXTURE_KIND,
                    .doc = "for a test",
                    .create = Create},
                   OpNames(),
                   std::array{kit::IntOption("rank", "0", 0, 1e6, "the one that hangs"),
                              kit::StringOption("call", "", "in which it hangs"),
                              kit::StringOption("fail", "", "in which it fails")});

}  // namespace engine::hanging
