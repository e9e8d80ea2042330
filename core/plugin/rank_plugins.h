// The plugins of one rank with everything they need: hosts, and the end of the run when it comes.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/plugin/create_object.h"
#include "core/plugin/plugin_host.h"

namespace engine::plugin {

class RankPlugins {
 public:
  // Loads and creates the plugins that are `chosen`, of which all but the ops may be none (without a
  // name); of a server the communicator and the optimizer alone. Both arguments are borrowed. When the run is aborted the communicator is told, so that
  // no wait goes on. `metrics` may be null.
  static Result<std::unique_ptr<RankPlugins>> Create(const PluginSelection& chosen,
                                                     base::RankContext& rank,
                                                     PluginHost::MetricSink metrics = nullptr);
  ~RankPlugins();

  PluginSet& set() { return set_; }
  // The communicator for ops that see all ranks while they run (ExecutorOptions::replicas): that of
  // the set where its transfers need no order, else another of
  // all ranks, split from it (SubGroups) or of the same plugin. Every rank asks, each once it has
  // the set, and once in a run. [setup]
  Result<Communicator*> ReplicaCommunicator();

  // Makes ops of the selected op plugins; attributes that are not given get their published
  // defaults.
  const OpFactory& op_factory() const { return op_factory_; }

 private:
  RankPlugins(const PluginSelection& chosen, base::RankContext& rank)
      : chosen_(chosen), rank_(rank) {}
  Status CreateOps();
  // Makes the object of `choice` in `made`, with a host of its own.
  template <typename T>
  Status Make(const PluginChoice& choice, std::unique_ptr<T>* made);
  Status MakeReplicas();
  void AbortWithRun(Communicator& communicator);
  Result<std::unique_ptr<Op>> MakeOp(const std::string& name,
                                     const std::vector<OwnedOption>& attributes) const;

  const PluginSelection& chosen_;
  base::RankContext& rank_;
  PluginHost::MetricSink metrics_;
  // What an object may use comes before it: hosts, then the set, and what was split from it.
  std::vector<std::unique_ptr<PluginHost>> hosts_;
  PluginSet set_;
  std::unique_ptr<Communicator> replicas_;  // null: none of its own
  const OpFactory op_factory_ = std::bind_front(&RankPlugins::MakeOp, this);
  std::vector<int> abort_tokens_;
};

}  // namespace engine::plugin
