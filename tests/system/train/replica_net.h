// A net whose batch norms see all ranks, and what its runs have to have in common.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/system/train/run_test.h"

namespace engine::testing {

// Sums of several ranks are rounded elsewhere than those of one, which batch norm and training
// carry on.
inline constexpr double kReplicaTolerance = 2e-4;

// Two epochs of 31 samples in steps of 15, 15 and 1: fewer in the last than there are ranks.
// No bias stands before a batch norm, which would take all but rounding from its gradient.
// Branches give schedulers a choice, and the frozen layer is a batch norm.
inline constexpr char kReplicaNet[] =
    "seed: 3 model { net {\n"
    "  layer { to_channels_last {} }\n"
    "  layer { conv2d { channels: 6 kernel: 3 bias: false } }\n"
    "  layer { name: \"bn1\" batch_norm {} } layer { relu {} }\n"
    "  layer { residual { layer { conv2d { channels: 8 kernel: 3 stride: 2 bias: false } }\n"
    "                     layer { batch_norm {} } layer { relu {} }\n"
    "                     layer { conv2d { channels: 8 kernel: 3 bias: false } } layer { "
    "batch_norm {} } }\n"
    "          shortcut { layer { conv2d { channels: 8 kernel: 1 stride: 2 bias: false } }\n"
    "                     layer { batch_norm {} } } }\n"
    "  layer { relu {} } layer { name: \"frozen\" batch_norm { momentum: 0.3 } trainable: false }\n"
    "  layer { relu {} } layer { global_avg_pool {} } layer { linear { units: 4 } }\n"
    "} }\n"
    "data { synthetic { samples: 31 eval_samples: 9 shape: 2 shape: 6 shape: 5 classes: 4 } }\n"
    "train { steps: 6 global_batch: 15 learning_rate { base: 0.05 } evaluate_every: 2 }\n"
    "plugins: [\"tcp\", \"fifo_sched\", \"sgd\", \"cpu_ops\"] sgd { momentum: 0.9 }\n"
    "cpu_ops { threads: 1 }\n";

class ReplicaRuns : public RunTest {
 protected:
  // The run of one rank, which the others are compared with.
  Training TrainAlone(const std::string& config) { return Train(config, {1}, "one"); }

  // With `overrides` the members train as one rank did.
  void ExpectEqualsOne(const Training& one, const std::string& config, const Members& members,
                       const std::vector<std::string>& overrides) {
    SCOPED_TRACE(std::to_string(members.ranks) + " ranks" + ::testing::PrintToString(overrides));
    ExpectSameRun(Train(config, members, "several", overrides), one, kReplicaTolerance, "run");
    ExpectNearTensors("several", "one", kReplicaTolerance);
  }
};

}  // namespace engine::testing
