// The plugins of one rank with everything they need: hosts, and the end of the run when it comes.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/base/rank_context.h"
#include "core/graph/builder.h"
#include "core/plugin/plugin_host.h"
#include "core/plugin/plugin_set.h"

namespace engine::train {

class RankPlugins {
 public:
  // Loads and creates the plugins that are `chosen`; of a server the communicator and the optimizer
  // alone. Both arguments are borrowed. When the run is aborted the communicator is told, so that
  // no wait goes on. `metrics` may be null.
  static Result<std::unique_ptr<RankPlugins>> Create(
      const plugin::PluginSelection& chosen, base::RankContext& rank,
      plugin::PluginHost::MetricSink metrics = nullptr);
  ~RankPlugins();

  plugin::PluginSet& set() { return set_; }
  // The communicator for ops that see all ranks while they run (ExecutorOptions::replicas): that of
  // the set where its transfers need no order, else its second order (kSecondOrderId), or another of
  // all ranks, split from it (SubGroups) or of the same plugin. Every rank asks, each once it has
  // the set, and once in a run. [setup]
  Result<Communicator*> ReplicaCommunicator();
  // Makes ops of the selected op plugins; attributes that are not given get their published
  // defaults.
  const graph::OpFactory& op_factory() const { return op_factory_; }

 private:
  RankPlugins(const plugin::PluginSelection& chosen, base::RankContext& rank)
      : chosen_(chosen), rank_(rank) {}
  Host& AddHost(const std::string& plugin, plugin::PluginHost::MetricSink metrics);
  Result<std::unique_ptr<Communicator>> MakeReplicaCommunicator();
  void AbortWithRun(Communicator& communicator);
  Result<std::unique_ptr<Op>> MakeOp(const std::string& name,
                                     const std::vector<plugin::OwnedOption>& attributes) const;

  const plugin::PluginSelection& chosen_;
  base::RankContext& rank_;
  Device* device_ = nullptr;
  std::vector<std::unique_ptr<plugin::PluginHost>> hosts_;
  plugin::PluginSet set_;
  std::unique_ptr<Communicator> replicas_;  // null: none of its own
  graph::OpFactory op_factory_;
  std::vector<int> abort_tokens_;
};

// Names of all plugins of a run, with spaces between.
std::string PluginNames(const plugin::PluginSelection& selection);

// Names and versions of all plugins of a run, as members compare them.
std::string PluginVersions(const plugin::PluginSelection& selection);

}  // namespace engine::train
