#include "tools/simulate/step_model.h"

#include "core/exec/served_updates.h"
#include "core/exec/sharded_updates.h"
#include "engine/ext/accelerator.h"
#include "engine/ext/parameter_server.h"

namespace engine::simulate {

Result<std::unique_ptr<StepModel>> StepModel::Create(LocalProfiler& rank, int64_t samples) {
  std::unique_ptr<StepModel> model(new StepModel(rank));
  ENGINE_ASSIGN_OR_RETURN(model->graph_, rank.BuildGraph(samples));
  model->program_ = graph::Differentiate(model->graph_);
  model->memory_ = graph::PlanMemory(model->graph_, model->program_);
  model->communicator_ = rank.plugins().communicator->traits();
  model->communicator_.no_op = 0;
  void* const client = Query<ParameterClient>(*rank.plugins().communicator);
  if (client != nullptr) {
    model->served_ = true;
    model->asynchronous_ =
        static_cast<ParameterClient*>(client)->traits().mode != UpdateMode::kSync;
  }
  model->optimizer_gate_ = rank.plugins().optimizer->traits().gate;
  for (const auto& hook : rank.plugins().hooks) model->hooks_.push_back(hook->traits());
  const plugin::PluginSelection& chosen = rank.config().plugins;
  const exec::ExecutorOptions options{.rank = {.world_size = 2},
                                      .shard_optimizer = rank.config().train.shard_optimizer,
                                      .communicator_name = chosen.communicator.entry.name,
                                      .optimizer_name = chosen.optimizer.entry.name,
                                      .hook_names = rank.HookNames()};
  ENGINE_ASSIGN_OR_RETURN(model->wire_, exec::ChooseWire(rank.plugins(), options));
  if (options.shard_optimizer) ENGINE_RETURN_IF_ERROR(exec::CheckCanShard(rank.plugins(), options));
  return model;
}

Result<StepPlan> StepModel::PlanFor(int32_t rank, int32_t world_size, uint32_t max_in_flight,
                                    int32_t servers) const {
  const plugin::PluginChoice& choice = rank_.config().plugins.scheduler;
  const bool served = Served(servers) && world_size > 1;
  const bool sharded = !served && rank_.config().train.shard_optimizer && world_size > 1;
  StepPlan plan;
  plan.rank = std::make_unique<SimulatedRank>(
      rank_.context(),
      RankInfo{.rank = rank, .world_size = world_size, .servers = servers, .one_host = 0}, choice);
  ENGINE_ASSIGN_OR_RETURN(plan.scheduler, plugin::Create<Scheduler>(choice, plan.rank->host));

  const std::vector<ParameterInfo> parameters = exec::DescribeParameters(graph_, program_);
  const bool on_accelerator = Query<Accelerator>(*rank_.plugins().device) != nullptr;
  ModelInfo model{.parameters = parameters,
                  .communicator = communicator_,
                  .gate = optimizer_gate_,
                  .world_size = world_size,
                  .slice_multiple = exec::SliceMultiple(world_size),
                  .sharded = sharded ? 1u : 0u,
                  .served = served ? 1u : 0u,
                  .accelerator = on_accelerator ? 1u : 0u};
  model.communicator.max_in_flight = max_in_flight;
  for (const HookTraits& hook : hooks_) {
    if (hook.scope == HookScope::kGlobal) model.gate = UpdateGate::kGlobal;
  }
  ENGINE_ASSIGN_OR_RETURN(const exec::FlatLayout layout,
                          exec::MakeLayout(graph_, model, *plan.scheduler, choice.entry.name));
  exec::WireLayout wire;
  const bool other_form = wire_.format != nullptr && world_size > 1;
  if (other_form) {
    if (served) {
      return Status::Error(StatusCode::kConfig,
                           "hook '%s' sends gradients in another form than float32, but servers "
                           "update the parameters: drop one of the two",
                           wire_.name.c_str());
    }
    ENGINE_ASSIGN_OR_RETURN(wire, exec::PlanWire(wire_, layout, world_size));
  }
  const exec::WireLayout* const travels = other_form ? &wire : nullptr;
  const exec::ExecutorOptions run{.rank = {.rank = rank, .world_size = world_size},
                                  .micro_batches = rank_.config().train.micro_batches,
                                  .hook_names = rank_.HookNames()};
  plan.graph = exec::BuildTaskGraph(graph_, program_, memory_, layout,
                                    {.run = run,
                                     .hooks = hooks_,
                                     .gate = optimizer_gate_,
                                     .chains = served    ? exec::ServedChains(layout, {})
                                               : sharded ? exec::ShardedChains(layout)
                                                         : exec::ReducedChains(layout, travels),
                                     .updates = !served,
                                     .own_part = sharded,
                                     .alone = world_size == 1,
                                     .accelerator = on_accelerator,
                                     .asynchronous = served && asynchronous_,
                                     .wire = travels});
  return plan;
}

}  // namespace engine::simulate
