// One rank's training run as a configuration describes it, with the files that it reads and writes.
#pragma once

#include <memory>
#include <string>

#include "app/checkpoint/checkpoint.h"
#include "app/config/config.h"
#include "app/run/recovery.h"
#include "core/train/trainer.h"

namespace engine::run {

// Whether a model of the data can write a text: its first input is the bytes of one.
bool IsText(const DatasetInfo& data);

class RunObserver : public train::TrainObserver {
 public:
  virtual Status OnCheckpoint(int64_t /*step*/, const std::string& /*path*/) { return {}; }
  virtual Status OnText(const std::string& /*text*/) { return {}; }
};

// What a checkpoint of the run says beside parameters and states.
checkpoint::CheckpointInfo InfoOf(const train::RunConfig& config, const RankInfo& rank,
                                  const train::RunState& now, const Best& best);

// `config`, `rank`, `observer` and `recovery` are borrowed; only rank 0's observer hears of evaluations,
// checkpoints and texts. `resume`: a checkpoint to go on from, or empty. `metrics` may be null, and
// `recovery` of a run that ends with the loss of a rank.
Result<std::unique_ptr<train::Trainer>> MakeTrainer(const config::Config& config,
                                                    base::RankContext& rank, RunObserver& observer,
                                                    plugin::PluginHost::MetricSink metrics,
                                                    const std::string& resume,
                                                    Recovery* recovery = nullptr);

// Trains, then writes the trace and shows a text, where they are configured. kInterrupted after a
// request to stop: the step at hand is finished on all ranks, and a checkpoint written if one is
// configured. Another failure is told to the run before this returns.
Status RunTraining(const config::Config& config, base::RankContext& rank, RunObserver& observer,
                   train::Trainer& trainer);

}  // namespace engine::run
