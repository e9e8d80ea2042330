// Order of creation: the ops with the device, other ops, communicator, optimizer, hooks, scheduler;
// each may use what is there before it (the device, through its Host). They are destroyed in the
// reverse order, also when an object in the middle could not be made, and the hosts go last.

#include "core/plugin/rank_plugins.h"

#include <utility>

#include "engine/ext/sub_groups.h"

namespace engine::plugin {

Result<std::unique_ptr<RankPlugins>> RankPlugins::Create(const PluginSelection& chosen,
                                                         base::RankContext& rank,
                                                         PluginHost::MetricSink metrics) {
  std::unique_ptr<RankPlugins> plugins(new RankPlugins(chosen, rank));
  plugins->metrics_ = std::move(metrics);
  plugins->set_.watch = rank.watch;
  const bool is_server = rank.info.is_server != 0;
  if (!is_server) ENGINE_RETURN_IF_ERROR(plugins->CreateOps());
  ENGINE_RETURN_IF_ERROR(plugins->Make(chosen.communicator, &plugins->set_.communicator));
  ENGINE_RETURN_IF_ERROR(plugins->Make(chosen.optimizer, &plugins->set_.optimizer));
  for (size_t i = 0; i < chosen.hooks.size() && !is_server; ++i) {
    ENGINE_RETURN_IF_ERROR(plugins->Make(chosen.hooks[i], &plugins->set_.hooks.emplace_back()));
  }
  if (!is_server) ENGINE_RETURN_IF_ERROR(plugins->Make(chosen.scheduler, &plugins->set_.scheduler));
  if (plugins->set_.communicator) plugins->AbortWithRun(*plugins->set_.communicator);
  return plugins;
}

template <typename T>
Status RankPlugins::Make(const PluginChoice& choice, std::unique_ptr<T>* made) {
  if (choice.entry.name.empty()) return {};
  hosts_.push_back(std::make_unique<PluginHost>(choice.entry.name, rank_, &set_.device, metrics_));
  hosts_.back()->Offer(choice);
  ENGINE_ASSIGN_OR_RETURN(*made, plugin::Create<T>(choice, *hosts_.back(), rank_.watch));
  return {};
}

// The device is known before the next plugin is made: a Host reads set_.device without a lock,
// because nothing writes it once a plugin that may ask has threads.
Status RankPlugins::CreateOps() {
  for (const PluginChoice& choice : chosen_.ops) {
    const PluginEntry& entry = choice.entry;
    std::unique_ptr<OpLibrary>& library = set_.ops.emplace_back();
    ENGINE_RETURN_IF_ERROR(Make(choice, &library));
    Device* const device = library->device();
    if (entry.brings_device() != (device != nullptr)) {
      return Status::Error(StatusCode::kPlugin, "plugin '%s' says device '%s' and brings %s",
                           entry.name.c_str(), entry.device.c_str(),
                           device != nullptr ? "one" : "none");
    }
    if (device != nullptr) set_.device = device;
    ENGINE_RETURN_IF_ERROR(device != nullptr ? CheckExtensions(*device, entry.Title()) : Status());
  }
  return {};
}

// The listener may run on any thread, at any time until it is forgotten: Communicator::Abort is
// made for that.
void RankPlugins::AbortWithRun(Communicator& communicator) {
  abort_tokens_.push_back(
      rank_.abort.Listen([&communicator](const Status& reason) { communicator.Abort(reason); }));
}

// Forget waits for a listener that runs, so no thread is in a communicator when it goes. The
// destructor of a list would begin with the first element, which later ones may use.
RankPlugins::~RankPlugins() {
  for (const int token : abort_tokens_) rank_.abort.Forget(token);
  const auto destroy = [this](auto& object, const PluginChoice& choice) {
    const base::OpenCall open(rank_.watch, choice.entry.Title(), "its destructor");
    object.reset();
  };
  destroy(replicas_, chosen_.communicator);
  destroy(set_.scheduler, chosen_.scheduler);
  for (size_t i = set_.hooks.size(); i-- > 0;) destroy(set_.hooks[i], chosen_.hooks[i]);
  destroy(set_.optimizer, chosen_.optimizer);
  destroy(set_.communicator, chosen_.communicator);
  for (size_t i = set_.ops.size(); i-- > 0;) destroy(set_.ops[i], chosen_.ops[i]);
}

Result<Communicator*> RankPlugins::ReplicaCommunicator() {
  if (set_.communicator->traits().ordered == 0) return set_.communicator.get();
  if (rank_.info.servers > 0) {
    return Status::Error(StatusCode::kConfig,
                         "ops that see all ranks need transfers in an order of their own, which "
                         "communicator '%s' does not offer in a run with servers",
                         chosen_.communicator.entry.name.c_str());
  }
  ENGINE_RETURN_IF_ERROR(MakeReplicas().WithContext("for ops that see all ranks"));
  AbortWithRun(*replicas_);
  return replicas_.get();
}

Status RankPlugins::MakeReplicas() {
  const PluginChoice& choice = chosen_.communicator;
  SubGroups* const groups = Query<SubGroups>(*set_.communicator);
  metrics_ = nullptr;  // those of another one would be taken for those of the first
  if (groups == nullptr) return Make(choice, &replicas_);
  Communicator* whole = nullptr;
  const base::OpenCall open(rank_.watch, choice.entry.Title(), "Split");
  ENGINE_RETURN_IF_ERROR(Answer(groups->Split(/*color=*/0, rank_.info.rank, &whole))
                             .WithContext("%s", choice.entry.Title().c_str()));
  replicas_.reset(whole);
  if (whole != nullptr) return {};
  return Status::Error(StatusCode::kPlugin, "communicator '%s' made none of all ranks",
                       choice.entry.name.c_str());
}

Result<std::unique_ptr<Op>> RankPlugins::MakeOp(const std::string& name,
                                                const std::vector<OwnedOption>& attributes) const {
  ENGINE_ASSIGN_OR_RETURN(const ResolvedOp resolved,
                          chosen_.resolve_op(chosen_.ops, name, attributes));
  const std::vector<OptionValue> values = Views(resolved.attributes);
  const PluginEntry& plugin = chosen_.ops[resolved.plugin].entry;
  const base::OpenCall open(rank_.watch, plugin.Title(), "CreateOp of '" + name + "'");
  Op* op = nullptr;
  ENGINE_RETURN_IF_ERROR(Answer(set_.ops[resolved.plugin]->CreateOp(name, Options(values), &op))
                             .WithContext("%s", plugin.Title().c_str()));
  if (op != nullptr) return std::unique_ptr<Op>(op);
  return Status::Error(StatusCode::kPlugin, "%s made no op '%s'", plugin.Title().c_str(),
                       name.c_str());
}

}  // namespace engine::plugin
