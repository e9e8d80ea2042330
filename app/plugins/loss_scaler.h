// train.loss_scaling: a hook of the engine's own, which a run has like one of a library.
#pragma once

#include "core/plugin/plugin_set.h"

namespace engine::plugins {

struct LossScaling {
  double first = 1;
  double growth_factor = 1, backoff_factor = 1;
  int64_t growth_interval = 1;  // steps in a row that count
};

// The hook that does so, an plugin::LossScale: for the beginning of PluginSelection::hooks.
plugin::PluginChoice LossScalerOf(const LossScaling& scaling);

}  // namespace engine::plugins
