#include "tools/conform/suites.h"

#include <algorithm>

#include "engine/ext/grouped_transfers.h"
#include "engine/ext/link_cost.h"
#include "engine/ext/shared_memory.h"
#include "engine/ext/sub_groups.h"
#include "engine/ext/wire_progress.h"
#include "engine/gradient_hook.h"
#include "tools/conform/communicator/absence.h"
#include "tools/conform/ops/ops_suite.h"
#include "tools/conform/saved_state.h"
#include "tools/conform/subject.h"

namespace engine::conform {
namespace {

bool IsWire() {
  return Make<GradientHook>()->traits().stage == HookStage::kWire;
}
std::string TravelsInAForm() {
  return IsWire() ? "the suite wire judges hooks that say how gradients travel" : "";
}
std::string TravelsAsItIs() {
  return IsWire() ? "" : "gradients travel as they are";
}
std::string KeepsNoState() {
  return SavedStateOf(*Worked(0)) == nullptr ? "it keeps no state in checkpoints" : "";
}

}  // namespace

const std::vector<Suite>& Suites() {
  using enum PluginKind;
  static const std::vector<Suite> suites = {
      {"plugin", "Plugin", {}},
      {"options", "Options", {}},
      {"scheduler", "Scheduler", {kScheduler}},
      {"communicator", "Communicator:CommunicatorRanks", {kCommunicator}},
      {"communicator_failure",
       "CommunicatorFailure:CommunicatorOrder:CommunicatorKeys",
       {kCommunicator},
       NothingFails},
      {"communicator_process", "CommunicatorProcess", {kCommunicator}, NoProcesses},
      {"shared_memory", "SharedMemory", {kCommunicator}, NotOffered<SharedMemory, 2>},
      {"grouped_transfers", "GroupedTransfers", {kCommunicator}, NotOffered<GroupedTransfers, 1>},
      {"sub_groups", "SubGroups", {kCommunicator}, NotOffered<SubGroups, 1>},
      {"recorded_transfers", "RecordedTransfers", {kCommunicator}, NoRecordedTransfers},
      {"wire_progress", "WireProgress", {kCommunicator}, NotOffered<WireProgress, 2>},
      {"link_cost", "LinkCost", {kCommunicator}, NotOffered<LinkModel, 2>},
      {"parameter_server", "Of/Served*", {kCommunicator}, NoParameterServer},
      {"optimizer", "Optimizers", {kOptimizer}},
      {"hook", "Hook", {kHook}, TravelsInAForm},
      {"wire", "Wire", {kHook}, TravelsAsItIs},
      {"saved_state", "SavedState", {kScheduler, kHook, kCommunicator}, KeepsNoState},
      {"ops", "OpCalls:OpGradients:OpRanks:OpLibrary", {kOps}},
      {"device", "OpDevice", {kOps}, BringsNoDevice},
      {"accelerator", "OpAccelerator", {kOps}, IsNoAccelerator},
      {"dataset", "Datasets", {kDataset}},
      {"model", "Models", {kModel}},
  };
  return suites;
}

std::vector<const Suite*> SuitesOf(PluginKind kind) {
  std::vector<const Suite*> suites;
  for (const Suite& suite : Suites()) {
    if (suite.kinds.empty() || std::ranges::count(suite.kinds, kind) > 0) suites.push_back(&suite);
  }
  return suites;
}

}  // namespace engine::conform
