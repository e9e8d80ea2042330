// Every rank has the sum of all gradients and makes all updates.
//
//   all-reduce:  ALL_REDUCE, hooks, UPDATE
//   split:       REDUCE_SCATTER, ALL_GATHER of gradients, hooks, UPDATE
//   packed:      ALL_GATHER of what a hook has packed, hooks, UPDATE
#pragma once

#include <vector>

#include "core/exec/update_strategy.h"

namespace engine::exec {

std::vector<UnitChain> ReducedChains(const FlatLayout& layout, const WireLayout* wire);

class ReducedUpdates final : public UpdateStrategy {
 public:
  ReducedUpdates(plugin::PluginSet& plugins, const ExecutorOptions& options)
      : UpdateStrategy(plugins, options, /*in_parts=*/false) {}
  void DescribeTasks(const FlatLayout& layout, TaskGraphOptions* options) const override {
    options->chains = ReducedChains(layout, options->wire);
  }
  TensorView state(int32_t parameter, int32_t index) const override;
};

}  // namespace engine::exec
