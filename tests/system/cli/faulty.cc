// A plugin of any role, as FIXTURE_KIND and FIXTURE_CLASS say, that works but for its fault.
#include <array>
#include <chrono>
#include <cstring>
#include <deque>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "engine/ext/wire_format.h"
#include "engine/plugin.h"
#include "kit/create.h"
#include "kit/dataset.h"
#include "kit/model.h"
#include "kit/options.h"
#include "tests/system/cli/fault.h"

namespace engine::faulty {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

template <typename Role>
class Faulty : public Role::Base {
 public:
  explicit Faulty(const Fault& fault) : fault_(fault) {}
  ~Faulty() override { (void)fault_.At("destructor"); }

 protected:
  bool Is(std::string_view mode) const { return fault_.Is(mode); }
  Status At(std::string_view call) const noexcept { return fault_.At(call); }
  const Fault fault_;
};

// Names of states, as an optimizer and a wire format have them.
void NameStates(const Fault& fault, FixedString<32>* names) {
  names[0] = "first";
  names[1] = "second";
  if (fault.Is("states_same")) names[1] = "first";
  if (fault.Is("state_path")) names[0] = "../../etc/x";
  if (fault.Is("state_empty")) names[0] = "";
}

// Each gradient, after its transfer; with HookStage::kWire all of them, as they are.
class FaultyHook final : public Faulty<GradientHook>, public WireFormatBase {
 public:
  using Faulty::Faulty;
  HookTraits traits() const noexcept override {
    HookTraits traits;
    fault_.Set("stage", &traits.stage);
    fault_.Set("scope", &traits.scope);
    return traits;
  }
  void* Query(std::string_view id) noexcept override {
    return id == WireFormat::kId && !Is("no_format") ? static_cast<WireFormat*>(this) : nullptr;
  }
  Status Setup(uint32_t) noexcept override { return At("Setup"); }
  Status BeginStep(uint64_t step) noexcept override {
    step_ = step;
    return At("BeginStep");
  }
  Status Observe(const GradientView&) noexcept override { return At("Observe"); }
  Status Apply(const GradientView& gradient) noexcept override {
    if (Is("scale")) *gradient.scale *= 2;
    if (Is("nan")) gradient.data[0] = kNan;
    if (Is("drift")) gradient.data[0] += 5;
    return At("Apply");
  }
  std::span<float> Observed() noexcept override {
    if (Is("observed_null")) return {static_cast<float*>(nullptr), 2};
    size_t count = Is("observed_varies") ? 1 + step_ % 2 : 2;
    fault_.Set("observed", &count);
    return std::span(sums_).first(count);
  }

  WireTraits wire_traits() const noexcept override {
    WireTraits traits{.kind = WireKind::kPacked};
    fault_.Set("kind", &traits.kind);
    fault_.Set("dtype", &traits.dtype);
    fault_.Set("states", &traits.state_count);
    NameStates(fault_, traits.state_names);
    return traits;
  }
  int64_t PackedBytes(int64_t count) const noexcept override {
    int64_t bytes = count * 4;
    fault_.Set("packed", &bytes);
    return bytes;
  }
  Status Pack(const WireCall& call) noexcept override {
    std::memcpy(call.wire, call.gradient, static_cast<size_t>(call.count) * sizeof(float));
    return At("Pack");
  }
  Status Unpack(const WireCall& call) noexcept override {
    for (int64_t i = 0; i < call.count; ++i) {
      const float sent = static_cast<const float*>(call.wire)[i];
      call.gradient[i] = call.accumulate != 0 ? call.gradient[i] + sent : sent;
    }
    return At("Unpack");
  }

 private:
  uint64_t step_ = 0;
  float sums_[1000] = {};
};

class FaultyOptimizer final : public Faulty<Optimizer> {
 public:
  using Faulty::Faulty;
  OptimizerTraits traits() const noexcept override {
    OptimizerTraits traits;
    fault_.Set("gate", &traits.gate);
    fault_.Set("states", &traits.state_count);
    fault_.Set("version", &traits.state_format_version);
    NameStates(fault_, traits.state_names);
    return traits;
  }
  Status Update(const UpdateCall& call) noexcept override {
    for (int64_t i = 0; i < call.count; ++i) {
      call.value[i] -= call.learning_rate * call.gradient[i] * call.gradient_scale;
    }
    if (Is("nan")) call.value[0] = kNan;
    if (Is("drift")) call.value[0] += 5;
    return At("Update");
  }
};

class FaultyDataset final : public Faulty<Dataset> {
 public:
  using Faulty::Faulty;
  DatasetInfo info() const noexcept override {
    const size_t inputs = Is("no_input") ? 0 : 1;
    return {.name = Is("name") ? kOddText : "faulty_dataset",
            .inputs = {&input_, inputs},
            .targets = {&target_, 1},
            .train_samples = train_,
            .held_out_samples = held_out_,
            .digest = Is("digest") ? kOddText : ""};
  }
  Status Open(uint64_t) noexcept override {
    fault_.Set("train", &train_);
    fault_.Set("held_out", &held_out_);
    fault_.Set("ndim", &input_.shape.ndim);
    fault_.Set("extent", &input_.shape.dims[0]);
    fault_.Set("dtype", &input_.dtype);
    fault_.Set("content", &input_.content);
    fault_.Set("input_classes", &input_.classes);
    fault_.Set("classes", &target_.classes);
    fault_.Set("target_ndim", &target_.shape.ndim);
    if (Is("tensor_name")) {
      input_.name = kOddText;
      input_.shape.ndim = -1;
    }
    return At("Open");
  }
  Status Fill(const FillCall& call) const noexcept override {
    auto* points = static_cast<float*>(call.tensors[0]);
    auto* classes = static_cast<int32_t*>(call.tensors[1]);
    const size_t count = call.indices.size();
    std::fill_n(points, count * 8, Is("nan") ? kNan : 0.5f);
    std::fill_n(classes, count, Is("class") ? 4 : 1);
    if (Is("overrun")) points[count * 8] = 1;
    return At(call.epoch < 2 ? "Fill" : "Ahead");
  }

 private:
  SampleTensor input_{.name = "point", .shape = {8}};
  SampleTensor target_{.name = "class", .dtype = DType::kInt32, .classes = 4};
  int64_t train_ = 16, held_out_ = 16;
};

class FaultyModel final : public Faulty<Model> {
 public:
  using Faulty::Faulty;
  Status Build(ModelBuilder& builder) const noexcept override {
    ENGINE_RETURN_IF_ERROR(At("Build"));
    LayerSpec layer{.name = Is("name") ? kOddText : "first"};
    if (Is("rate")) layer.learning_rate_scale = kNan;
    int64_t units = 8;
    fault_.Set("units", &units);
    const auto linear = [&](ModelValue input, int64_t outputs) {
      return kit::Apply(builder, layer.name, "linear", {input}, {kit::Int("units", outputs)},
                        layer);
    };
    ENGINE_ASSIGN_OR_RETURN(ModelValue x, linear(0, units));
    ENGINE_RETURN_IF_ERROR(BuildOddly(builder, x));
    layer.name = Is("twice") ? "first" : "last";
    ENGINE_ASSIGN_OR_RETURN(x, linear(x, 4));
    if (Is("no_output")) return {};
    if (Is("no_loss")) return builder.Output("logits", x);
    if (Is("bad_loss")) return builder.Loss(x);
    ENGINE_RETURN_IF_ERROR(builder.Output("logits", x));
    if (builder.data().with_loss == 0) return {};
    ENGINE_ASSIGN_OR_RETURN(const ModelValue loss,
                            kit::Apply(builder, "", "softmax_cross_entropy", {x, 1}));
    return builder.Loss(loss);
  }

 private:
  // What must be refused, whatever the model makes of that.
  Status BuildOddly(ModelBuilder& builder, ModelValue x) const {
    ModelValue value = 0, values[2];
    if (Is("value")) (void)kit::Apply(builder, "", "relu", {99});
    if (Is("inputs")) (void)kit::Apply(builder, "", "relu", std::vector<ModelValue>(13, x));
    if (Is("outputs")) (void)builder.Apply({.op = "relu"}, {&x, 1}, values);
    if (Is("op")) (void)kit::Apply(builder, "", kOddText, {x});
    if (Is("attribute")) (void)kit::Apply(builder, "", "relu", {x}, {kit::Int("odd", 1)});
    if (Is("attribute_type")) {
      const OptionValue odd{.name = "units", .type = static_cast<OptionType>(99)};
      (void)kit::Apply(builder, "", "linear", {x}, {odd});
    }
    if (Is("output")) (void)builder.Output("odd", -1);
    if (Is("frozen")) (void)builder.Loss(99);
    ParameterSpec wanted{.shape = {4}};
    fault_.Set("extent", &wanted.shape.dims[0]);
    fault_.Set("ndim", &wanted.shape.ndim);
    fault_.Set("dtype", &wanted.dtype);
    fault_.Set("initializer", &wanted.initializer);
    if (Is("parameter")) (void)builder.Parameter("odd", &wanted, &value);
    if (Is("parameter_null")) (void)builder.Parameter("odd", &wanted, nullptr);
    if (Is("parameter_name")) (void)builder.Parameter(kOddText, &wanted, &value);
    if (Is("parameter_before")) (void)builder.Parameter("last.weight", &wanted, &value);
    if (Is("parameter_twice")) (void)builder.Parameter("first.weight", &wanted, &value);
    return {};
  }
};

// The op `faulty`: its output is its input. It has a parameter, which does nothing.
class FaultyOp final : public OpBase {
 public:
  explicit FaultyOp(const Fault& fault) : fault_(fault) {}
  Status Infer(Array<const TensorSpec> inputs, OpSignature* signature) noexcept override {
    signature->parameter_count = signature->output_count = 1;
    signature->differentiable_inputs = 3;
    TensorSpec& output = signature->outputs[0] = inputs[0];
    ParameterSpec& parameter = signature->parameters[0] = {.name = "weight", .shape = {8}};
    signature->parameters[1] = parameter;
    if (Is("name_empty")) parameter.name = "";
    if (Is("name_odd")) parameter.name = "odd\n\x1b[31m/../name";
    if (Is("scale")) parameter.scale = kNan;
    fault_.Set("parameters", &signature->parameter_count);
    fault_.Set("parameter_ndim", &parameter.shape.ndim);
    fault_.Set("parameter_extent", &parameter.shape.dims[0]);
    fault_.Set("parameter_dtype", &parameter.dtype);
    fault_.Set("initializer", &parameter.initializer);
    fault_.Set("outputs", &signature->output_count);
    fault_.Set("ndim", &output.shape.ndim);
    fault_.Set("rows", &output.shape.dims[0]);
    fault_.Set("extent", &output.shape.dims[1]);
    fault_.Set("dtype", &output.dtype);
    fault_.Set("view_of", &signature->output_is_view_of);
    fault_.Set("in_place_of", &signature->in_place_of);
    fault_.Set("saved", &signature->saved_bytes);
    fault_.Set("workspace", &signature->workspace_bytes);
    fault_.Set("differentiable", &signature->differentiable_inputs);
    fault_.Set("accumulates", &signature->accumulates);
    fault_.Set("passes", &signature->passes_gradient);
    fault_.Set("equal", &signature->equal_gradients);
    fault_.Set("gradient_in_place", &signature->gradient_in_place);
    return fault_.At("Infer");
  }
  Status Forward(const OpCall& call) noexcept override {
    std::memmove(call.outputs[0].data, call.inputs[0].data, call.inputs[0].size_bytes());
    if (Is("nan")) call.outputs[0].f32()[0] = kNan;
    return fault_.At(call.training != 0 ? "Forward" : "Evaluation");
  }
  Status Backward(const OpCall& call) noexcept override {
    const TensorView& to = call.input_grads[0];
    if (to.data != nullptr) std::memmove(to.data, call.output_grads[0].data, to.size_bytes());
    const TensorView& of_weight = call.input_grads[1];
    if (of_weight.data != nullptr) std::memset(of_weight.data, 0, of_weight.size_bytes());
    if (Is("drift")) of_weight.f32()[0] = 5;
    return fault_.At("Backward");
  }

 private:
  bool Is(std::string_view mode) const { return fault_.Is(mode); }
  const Fault fault_;
};

class FaultyOps final : public Faulty<OpLibrary> {
 public:
  using Faulty::Faulty;
  Device* device() noexcept override { return nullptr; }
  Status CreateOp(std::string_view, const Options&, Op** out) noexcept override {
    if (Is("null")) return {};
    ENGINE_RETURN_IF_ERROR(At("CreateOp"));
    return *out = new FaultyOp(fault_), Status();
  }
};

// Sums over ranks through the store of the run, inside of Submit.
class FaultyCommunicator final : public Faulty<Communicator> {
 public:
  FaultyCommunicator(const Fault& fault, Host& host) : Faulty(fault), host_(host) {}
  CommunicatorTraits traits() const noexcept override {
    CommunicatorTraits traits{
        .kinds = Bit(TransferKind::kAllReduce) | Bit(TransferKind::kBroadcast),
        .dtypes = Bit(DType::kFloat32),
        .max_in_flight = 1};
    fault_.Set("kinds", &traits.kinds);
    fault_.Set("dtypes", &traits.dtypes);
    fault_.Set("in_flight", &traits.max_in_flight);
    fault_.Set("no_op", &traits.no_op);
    return traits;
  }
  Status Submit(const Transfer& transfer, Work** out) noexcept override {
    ENGINE_RETURN_IF_ERROR(At("Submit"));
    if (Is("no_work")) return {};
    ENGINE_RETURN_IF_ERROR(Move(transfer));
    return *out = &works_.emplace_back(fault_), Status();
  }
  void Abort(const Status&) noexcept override { (void)At("Abort"); }

 private:
  // Each rank adds what all have said, in the order of ranks.
  Status Move(const Transfer& transfer) {
    if (traits().no_op != 0) return {};
    const int32_t ranks = fault_.rank_info().world_size;
    const auto count = static_cast<size_t>(transfer.count);
    const std::string key = std::to_string(++moved_) + "/";
    const auto* const own = static_cast<const uint8_t*>(transfer.send);
    ENGINE_RETURN_IF_ERROR(host_.StoreSet(key + std::to_string(fault_.rank_info().rank),
                                          {own, count * sizeof(float)}));
    std::vector<float> sum(count);
    for (int32_t rank = 0; rank < ranks; ++rank) {
      if (transfer.kind == TransferKind::kBroadcast && rank != transfer.root) continue;
      std::string bytes;
      ENGINE_RETURN_IF_ERROR(
          StoreGetString(host_, key + std::to_string(rank), transfer.timeout_ms, &bytes));
      const auto* const numbers = reinterpret_cast<const float*>(bytes.data());
      for (size_t i = 0; i < count; ++i) sum[i] += numbers[i];
    }
    if (Is("drift") && count > 16) sum[0] += 50;
    if (Is("last") && count > 16) sum.back() += 50;
    std::memcpy(transfer.recv, sum.data(), count * sizeof(float));
    return {};
  }

  class DoneWork final : public WorkBase {
   public:
    explicit DoneWork(const Fault& fault) : fault_(fault) {}
    WorkState state() const noexcept override {
      if (fault_.Is("never") || (fault_.Is("early") && !asked_)) {
        asked_ = true;
        return WorkState::kPending;
      }
      WorkState state = WorkState::kDone;
      fault_.Set("state", &state);
      return state;
    }
    int64_t started_ns() const noexcept override { return fault_.Is("started") ? -1 : 0; }
    Status WaitHost(int64_t timeout_ms) noexcept override {
      if (!fault_.Is("never")) return fault_.At("WaitHost");
      std::this_thread::sleep_for(std::chrono::milliseconds(timeout_ms));
      return Status::Error(StatusCode::kTimeout, "it is still pending");
    }
    Status WaitStream(Stream*) noexcept override { return {}; }
    void OnDone(void (*callback)(void*), void* context) noexcept override {
      if (fault_.Is("never")) return;
      callback(context);
      if (fault_.Is("early") || fault_.Is("twice")) callback(context);
    }
    void Release() noexcept override {}

   private:
    const Fault fault_;
    mutable bool asked_ = false;  // for its state, once
  };

  Host& host_;
  uint64_t moved_ = 0;
  std::deque<DoneWork> works_;
};

// Everything as soon as it is ready, a bucket for each parameter.
class FaultyScheduler final : public Faulty<Scheduler> {
 public:
  using Faulty::Faulty;
  SchedulerTraits traits() const noexcept override {
    SchedulerTraits traits;
    fault_.Set("order", &traits.order);
    return traits;
  }
  Status Plan(const ModelInfo& model, PlanSink& sink) noexcept override {
    const auto count = static_cast<uint32_t>(model.parameters.size());
    for (uint32_t i = 0; i < count && !Is("plan_nothing"); ++i) {
      const uint32_t parameter = Is("plan_reversed") ? count - 1 - i : i;
      BucketSpan span{.parameter = parameter, .count = model.parameters[parameter].count};
      BucketStages stages = BucketStages::kAllReduce;
      if (i == count - 1) {
        if (Is("plan_misses")) break;
        fault_.Set("parameter", &span.parameter);
        fault_.Set("offset", &span.offset);
        fault_.Set("count", &span.count);
        fault_.Set("stages", &stages);
      }
      const size_t spans = Is("plan_empty") ? 0 : 1;
      sink.AddBucket({&span, spans}, 0, stages);
      if (Is("plan_twice")) sink.AddBucket({&span, spans}, 0, stages);
    }
    return At("Plan");
  }
  Status Begin(Array<const TaskInfo> tasks) noexcept override {
    tasks_.assign(tasks.begin(), tasks.end());
    return At("Begin");
  }
  void On(const SchedulerEvent& event) noexcept override {
    (void)At("On");
    if (event.kind == EventKind::kTaskReady) Ready(tasks_[event.task].lane).push_back(event.task);
  }
  Action Next(Lane lane) noexcept override {
    (void)At("Next");
    std::deque<uint32_t>& ready = Ready(lane);
    if (Is("other_lane") && !ready_[1].empty()) return {ActionKind::kRun, ready_[1].front()};
    if (ready.empty() || Is("hold")) return {};
    Action action{ActionKind::kRun, ready.front()};
    fault_.Set("action", &action.kind);
    fault_.Set("task", &action.task);
    if (lane == Lane::kIo && Is("newest_first"))
      action.task = std::exchange(ready.back(), action.task);
    if (!Is("again")) ready.pop_front();
    return action;
  }

 private:
  std::deque<uint32_t>& Ready(Lane lane) { return ready_[lane == Lane::kIo]; }
  std::vector<TaskInfo> tasks_;
  std::deque<uint32_t> ready_[2];
};

constexpr auto OpNames() noexcept {
  if constexpr (PluginKind::FIXTURE_KIND == PluginKind::kOps)
    return std::array{OpName("faulty")};
  else
    return NoOps();
}

StatusValue Create(Host& host, const Options& options, Object** out) noexcept {
  const Fault fault(host, options);
  if (fault.Is("nothing")) return {};
  if (fault.Is("log")) host.Log(LogLevel::kWarning, std::string(kOddText) + std::string(5000, 'x'));
  if (fault.Is("level")) host.Log(static_cast<LogLevel>(9), "of an unknown level");
  ENGINE_RETURN_IF_ERROR(fault.At("create"));
  if constexpr (std::is_constructible_v<FIXTURE_CLASS, const Fault&, Host&>) {
    return kit::Make<FIXTURE_CLASS>(out, fault, host);
  } else {
    return kit::Make<FIXTURE_CLASS>(out, fault);
  }
}

}  // namespace

extern "C" ENGINE_PLUGIN_EXPORT constexpr auto ENGINE_PLUGIN_SYMBOL =
    DescribePlugin({.name = FIXTURE_NAME,
                    .version = "1.0.0",
                    .kind = PluginKind::FIXTURE_KIND,
                    .doc = "for a test",
                    .create = Create},
                   OpNames(),
                   std::array{kit::IntOption("rank", "-1", -1, 1e6, "the one at fault; -1: all"),
                              kit::StringOption("mode", "", "its faults: fault.h")});

}  // namespace engine::faulty
