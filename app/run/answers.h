// What plugins have said of themselves and made of a run, for ranks to compare.
#pragma once

#include <string>

#include "core/exec/executor.h"
#include "core/train/run_config.h"
#include "engine/dataset.h"

namespace engine::run {

// A line for each, in the order in which one follows from another: the plugin in the first line that
// differs is the one that differs.
std::string AnswersOfPlugins(const train::RunConfig& config, const DatasetInfo& data,
                             const exec::Executor& executor);

}  // namespace engine::run
