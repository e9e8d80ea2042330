// A net whose batch norms see all ranks, and what its runs have to have in common.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/support/temp_folder.h"
#include "tests/support/training.h"

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

inline const std::vector<std::string> kSchedulers = {"sequential_sched", "fifo_sched",
                                                     "priority_sched", "dear_sched"};

inline std::string With(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

inline std::string NetWith(const std::string& communicator, const std::string& scheduler) {
  return With(With(kReplicaNet, "\"tcp\"", std::string("\"").append(communicator).append("\"")),
              "\"fifo_sched\"", std::string("\"").append(scheduler).append("\""));
}

class ReplicaRuns : public ::testing::Test {
 protected:
  std::string CheckpointAt(const std::string& name) const {
    return "output.checkpoint=" + (folder_ / name);
  }

  // The run of one rank, which the others are compared with.
  Training TrainAlone(const std::string& config) {
    return TrainWithThreads(config, 1, {CheckpointAt("one")});
  }

  void ExpectSameRun(const Training& run, const std::string& checkpoint, const Training& one,
                     const std::string& what) {
    ASSERT_TRUE(run.status.ok()) << what << ": " << run.status.message();
    ExpectSameLosses(run.losses, one.losses, kReplicaTolerance, what);
    EXPECT_EQ(run.samples, one.samples) << what;
    ASSERT_EQ(run.evaluations.size(), one.evaluations.size()) << what;
    for (size_t i = 0; i < one.evaluations.size(); ++i) {
      EXPECT_EQ(run.evaluations[i].targets, one.evaluations[i].targets) << what;
      EXPECT_NEAR(run.evaluations[i].loss, one.evaluations[i].loss,
                  kReplicaTolerance * one.evaluations[i].loss)
          << what;
    }
    ExpectSameTensors(folder_ / checkpoint, folder_ / "one", kReplicaTolerance);
  }

  TempFolder folder_;
};

}  // namespace engine::testing
