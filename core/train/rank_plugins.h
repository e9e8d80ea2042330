// The plugins of one rank with everything they need: hosts, logger, and the end of the run when it
// comes.
#pragma once

#include <spdlog/logger.h>

#include <memory>
#include <string>
#include <vector>

#include "app/config/config.h"
#include "app/launch/plugin_host.h"
#include "core/base/rank_context.h"
#include "core/graph/builder.h"
#include "core/plugin/plugin_set.h"

namespace engine {

class RankPlugins {
 public:
  // Loads and creates the plugins that `config` selects. `rank` and `config` are borrowed. When the
  // run is aborted the communicator is told, so that no wait goes on.
  static Result<std::unique_ptr<RankPlugins>> Create(const Config& config, RankContext& rank,
                                                     std::shared_ptr<spdlog::logger> logger,
                                                     PluginHost::MetricSink metrics);
  // The same for a server: a communicator and an optimizer, and no ops.
  static Result<std::unique_ptr<RankPlugins>> CreateForServer(
      const Config& config, RankContext& rank, std::shared_ptr<spdlog::logger> logger);
  ~RankPlugins();

  PluginSet& set() { return set_; }
  // The communicator for ops that see all ranks while they run (ExecutorOptions::replicas): that of
  // the set where its transfers need no order, else another of all ranks, split from it (SubGroups)
  // or of the same plugin, made when it is first asked for. Then all ranks must ask for it, each
  // once it has the set, and servers serve it (TellServersOfReplicas). [setup]
  Result<Communicator*> ReplicaCommunicator();
  // Makes ops of the selected op plugins; attributes that are not given get their published
  // defaults.
  const OpFactory& op_factory() const { return op_factory_; }

 private:
  RankPlugins(const Config& config, RankContext& rank, std::shared_ptr<spdlog::logger> logger)
      : config_(config), rank_(rank), logger_(std::move(logger)) {}
  Host& AddHost(const std::string& plugin, PluginHost::MetricSink metrics);
  Result<std::unique_ptr<Communicator>> MakeReplicaCommunicator();
  void AbortWithRun(Communicator& communicator);
  Result<std::unique_ptr<Op>> MakeOp(const std::string& name,
                                     const std::vector<OwnedOption>& attributes) const;

  const Config& config_;
  RankContext& rank_;
  const std::shared_ptr<spdlog::logger> logger_;
  Device* device_ = nullptr;
  std::vector<std::unique_ptr<PluginHost>> hosts_;
  PluginSet set_;
  std::unique_ptr<Communicator> replicas_;  // null: none of its own
  OpFactory op_factory_;
  std::vector<int> abort_tokens_;
};

// All that were selected: communicator, scheduler, optimizer, ops, hooks.
std::vector<const PluginChoice*> ChosenPlugins(const PluginSelection& selection);

// Names and versions of all plugins of a run, as members compare them.
std::string PluginVersions(const PluginSelection& selection);

}  // namespace engine
