// reverse_sched: another scheduler, with its priorities turned round.
#include <array>
#include <memory>

#include "engine/ext/inner_plugins.h"
#include "engine/plugin.h"
#include "kit/create.h"
#include "kit/options.h"

namespace engine::reverse_sched {
namespace {

class ReverseSink final : public PlanSinkBase {
 public:
  explicit ReverseSink(PlanSink& sink) : sink_(sink) {}
  void AddBucket(Array<const BucketSpan> spans, int32_t priority,
                 BucketStages stages) noexcept override {
    sink_.AddBucket(spans, 1000 - priority, stages);
  }

 private:
  PlanSink& sink_;
};

class ReverseScheduler final : public SchedulerBase {
 public:
  explicit ReverseScheduler(Scheduler* inner) : inner_(inner) {}
  SchedulerTraits traits() const noexcept override { return inner_->traits(); }
  Status Plan(const ModelInfo& model, PlanSink& sink) noexcept override {
    ReverseSink reverse(sink);
    return inner_->Plan(model, reverse);
  }
  Status Begin(Array<const TaskInfo> tasks) noexcept override { return inner_->Begin(tasks); }
  void On(const SchedulerEvent& event) noexcept override { inner_->On(event); }
  Action Next(Lane lane) noexcept override { return inner_->Next(lane); }

 private:
  const std::unique_ptr<Scheduler> inner_;
};

StatusValue Create(Host& host, const Options& options, Object** out) noexcept {
  const OptionValue slices = options.Find("slice_bytes", OptionType::kInt);
  const size_t given = slices.integer < 0 ? 0 : 1;
  Scheduler* inner = nullptr;
  ENGINE_RETURN_IF_ERROR(Query<InnerPlugins>(host)->CreateScheduler(
      {.plugin = options.String("inner"), .options = {&slices, given}, .label = "inner"}, &inner));
  return kit::Make<ReverseScheduler>(out, inner);
}

}  // namespace

extern "C" ENGINE_PLUGIN_EXPORT constexpr auto ENGINE_PLUGIN_SYMBOL = DescribePlugin(
    {.name = "reverse_sched",
     .version = "1.0.0",
     .kind = PluginKind::kScheduler,
     .doc = "turns the priorities of another scheduler round",
     .create = Create},
    NoOps(),
    std::array{kit::PluginOption("inner", "fifo_sched", "scheduler", "that plans"),
               kit::IntOption("slice_bytes", "-1", -1, 4e9, "of it; -1: what its block says")});

}  // namespace engine::reverse_sched
