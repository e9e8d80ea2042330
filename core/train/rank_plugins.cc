#include "core/train/rank_plugins.h"

#include <algorithm>
#include <utility>

#include "core/plugin/load_plugins.h"
#include "core/plugin/option_value.h"
#include "engine/ext/second_order.h"
#include "engine/ext/sub_groups.h"

namespace engine::train {

Result<std::unique_ptr<RankPlugins>> RankPlugins::Create(const plugin::PluginSelection& chosen,
                                                         base::RankContext& rank,
                                                         plugin::PluginHost::MetricSink metrics) {
  std::unique_ptr<RankPlugins> plugins(new RankPlugins(chosen, rank));
  RankPlugins& self = *plugins;
  const plugin::HostFactory host_of = [&](const std::string& plugin) -> Host& {
    return self.AddHost(plugin, metrics);
  };
  if (rank.info.is_server != 0) {
    ENGINE_ASSIGN_OR_RETURN(self.set_, plugin::CreateServerPlugins(chosen, host_of));
  } else {
    ENGINE_ASSIGN_OR_RETURN(self.set_, plugin::CreatePlugins(chosen, host_of, [&](Device* device) {
                              self.device_ = device;
                            }));
    self.op_factory_ = [&self](const std::string& name,
                               const std::vector<plugin::OwnedOption>& attributes) {
      return self.MakeOp(name, attributes);
    };
  }
  self.AbortWithRun(*self.set_.communicator);
  return plugins;
}

Host& RankPlugins::AddHost(const std::string& plugin, plugin::PluginHost::MetricSink metrics) {
  hosts_.push_back(
      std::make_unique<plugin::PluginHost>(plugin, rank_, &device_, std::move(metrics)));
  return *hosts_.back();
}

// The listener may run on any thread, at any time until it is forgotten: Communicator::Abort is
// made for that.
void RankPlugins::AbortWithRun(Communicator& communicator) {
  abort_tokens_.push_back(
      rank_.abort.Listen([&communicator](const Status& reason) { communicator.Abort(reason); }));
}

// Forget waits for a listener that runs, so no thread is in a communicator when it goes.
RankPlugins::~RankPlugins() {
  for (const int token : abort_tokens_) rank_.abort.Forget(token);
}

Result<Communicator*> RankPlugins::ReplicaCommunicator() {
  if (set_.communicator->traits().ordered == 0) return set_.communicator.get();
  if (void* const second = set_.communicator->Query(kSecondOrderId)) {
    return static_cast<Communicator*>(second);
  }
  if (rank_.info.servers > 0) {
    return Status::Error(StatusCode::kConfig,
                         "ops that see all ranks need transfers in an order of their own, which "
                         "communicator '%s' does not offer in a run with servers",
                         chosen_.communicator.entry.name.c_str());
  }
  ENGINE_ASSIGN_OR_RETURN(replicas_, MakeReplicaCommunicator());
  AbortWithRun(*replicas_);
  return replicas_.get();
}

Result<std::unique_ptr<Communicator>> RankPlugins::MakeReplicaCommunicator() {
  auto* const groups = static_cast<SubGroups*>(set_.communicator->Query(kSubGroupsId));
  if (groups != nullptr) {
    Communicator* whole = nullptr;
    const Status split = groups->Split(/*color=*/0, rank_.info.rank, &whole);
    if (!split.ok()) return split.WithContext("for ops that see all ranks");
    if (whole != nullptr) return std::unique_ptr<Communicator>(whole);
    return Status::Error(StatusCode::kPlugin, "communicator '%s' made none of all ranks",
                         chosen_.communicator.entry.name.c_str());
  }
  const plugin::PluginChoice& choice = chosen_.communicator;
  ENGINE_ASSIGN_OR_RETURN(const auto library, plugin::LoadedPlugin::Load(choice.entry));
  const std::vector<OptionValue> values = plugin::Views(choice.options);
  // No sink: its metrics would be taken for those of the first one.
  auto made = library->Create(AddHost(choice.entry.name, nullptr), Options(values));
  if (!made.ok()) return made.status().WithContext("for ops that see all ranks");
  return std::unique_ptr<Communicator>(static_cast<Communicator*>(made->release()));
}

Result<std::unique_ptr<Op>> RankPlugins::MakeOp(
    const std::string& name, const std::vector<plugin::OwnedOption>& attributes) const {
  ENGINE_ASSIGN_OR_RETURN(OpLibrary * library, set_.FindOp(name));
  const plugin::PluginEntry* entry = nullptr;
  for (const plugin::PluginChoice& choice : chosen_.ops) {
    const auto& ops = choice.entry.ops;
    if (std::find(ops.begin(), ops.end(), name) != ops.end()) entry = &choice.entry;
  }
  ENGINE_CHECK(entry != nullptr, "op '%s' has a library but no entry", name.c_str());
  std::vector<plugin::OwnedOption> complete;
  for (const OptionSpec* spec : plugin::OptionsOf(entry->options, name)) {
    const auto given = std::find_if(
        attributes.begin(), attributes.end(),
        [&](const plugin::OwnedOption& attribute) { return attribute.name == spec->name.view(); });
    if (given == attributes.end()) {
      ENGINE_ASSIGN_OR_RETURN(plugin::OwnedOption value,
                              plugin::ParseOptionValue(*spec, spec->default_value.view()));
      complete.push_back(std::move(value));
      continue;
    }
    Status checked = plugin::CheckOptionValue(*spec, *given);
    if (!checked.ok()) return checked.WithContext("op '%s', %s", name.c_str(), given->name.c_str());
    complete.push_back(*given);
  }
  for (const plugin::OwnedOption& attribute : attributes) {
    if (std::any_of(complete.begin(), complete.end(), [&](const plugin::OwnedOption& known) {
          return known.name == attribute.name;
        })) {
      continue;
    }
    return Status::Error(StatusCode::kConfig, "op '%s' of plugin '%s' has no attribute '%s'",
                         name.c_str(), entry->name.c_str(), attribute.name.c_str());
  }
  const std::vector<OptionValue> values = plugin::Views(complete);
  Op* op = nullptr;
  ENGINE_RETURN_IF_ERROR(library->CreateOp(name, Options(values), &op));
  if (op == nullptr) {
    return Status::Error(StatusCode::kPlugin, "plugin '%s' made no op '%s'", entry->name.c_str(),
                         name.c_str());
  }
  return std::unique_ptr<Op>(op);
}

namespace {

std::vector<const plugin::PluginChoice*> AllOf(const plugin::PluginSelection& selection) {
  std::vector<const plugin::PluginChoice*> chosen{&selection.communicator, &selection.scheduler,
                                                  &selection.optimizer};
  for (const plugin::PluginChoice& ops : selection.ops) chosen.push_back(&ops);
  for (const plugin::PluginChoice& hook : selection.hooks) chosen.push_back(&hook);
  chosen.push_back(&selection.dataset);
  chosen.push_back(&selection.model);
  return chosen;
}

}  // namespace

std::string PluginNames(const plugin::PluginSelection& selection) {
  std::string names;
  for (const plugin::PluginChoice* choice : AllOf(selection)) {
    names += (names.empty() ? "" : " ") + choice->entry.name;
  }
  return names;
}

std::string PluginVersions(const plugin::PluginSelection& selection) {
  std::string versions;
  for (const plugin::PluginChoice* choice : AllOf(selection)) {
    versions += choice->entry.name + " " + choice->entry.version + "; ";
  }
  return versions;
}

}  // namespace engine::train
