#include "tools/conform/saved_state.h"

#include "engine/communicator.h"
#include "tools/conform/hook/hook_rig.h"
#include "tools/conform/scheduler/scheduler_rig.h"
#include "tools/conform/subject.h"

namespace engine::conform {
namespace {

std::shared_ptr<Object> WorkedHook(uint32_t steps) {
  std::shared_ptr<GradientHook> hook = Make<GradientHook>();
  Must(hook->Setup(kGradients));
  for (uint32_t step = 1; step <= steps; ++step) {
    auto gradients = RandomGradients(step);
    Must(RunHook(*hook, gradients, step));
  }
  return hook;
}

std::shared_ptr<Object> WorkedScheduler(uint32_t steps) {
  auto rig = std::make_shared<SchedulerRig>(Make<Scheduler>(), ModelSketch::Chain({10, 10000, 10}));
  if (steps > 0) rig->Run({.steps = steps});
  return {rig, rig->scheduler.get()};
}

}  // namespace

StateBytes Save(SavedState& state) {
  StateBytes bytes;
  const auto keep = [](void* context, const uint8_t* data, uint64_t size) {
    static_cast<StateBytes*>(context)->assign(data, data + size);
  };
  Must(state.SaveState(keep, &bytes));
  return bytes;
}

void CarryState(Object& from, Object& to) {
  if (SavedState* const saved = SavedStateOf(from)) Must(SavedStateOf(to)->LoadState(Save(*saved)));
}

std::shared_ptr<Object> Worked(uint32_t steps) {
  const PluginKind kind = UnderTest().plugin.file().kind;
  if (kind == PluginKind::kHook) return WorkedHook(steps);
  if (kind == PluginKind::kScheduler) return WorkedScheduler(steps);
  return Make<Communicator>();
}

}  // namespace engine::conform
