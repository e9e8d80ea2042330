// Layers that are not trained.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <string>
#include <vector>

#include "tests/system/train/run_test.h"

namespace engine::testing {
namespace {

using TensorMap = std::map<std::string, std::vector<uint8_t>>;

constexpr char kRun[] =
    "seed: 3 data { synthetic { samples: 40 shape: 8 classes: 4 } }\n"
    "train { steps: 8 global_batch: 10 learning_rate { base: 0.05 } }\n"
    "plugins: [\"tcp\", \"fifo_sched\", \"adamw\", \"cpu_ops\"]\n"
    "adamw { weight_decay: 0.1 } cpu_ops { threads: 1 }\n";
constexpr char kNet[] =
    "model { net {\n"
    "  layer { name: \"first\" linear { units: 6 } %s } layer { relu {} }\n"
    "  layer { name: \"second\" linear { units: 6 } } layer { relu {} }\n"
    "  layer { name: \"last\" linear { units: 4 } } } %s }\n";

class Frozen : public RunTest {
 protected:
  static std::string Net(const char* of_first_layer, const char* of_model) {
    char text[512];
    std::snprintf(text, sizeof text, kNet, of_first_layer, of_model);
    return text + std::string(kRun);
  }

  TensorMap Trained(const std::string& config, int ranks,
                    const std::vector<std::string>& more = {}) {
    Train(config, {ranks}, "model", more);
    return Tensors("model");
  }
};

// Of a run that may not change `names`, and must change what else there is.
void ExpectFrozen(const TensorMap& trained, const TensorMap& initial,
                  const std::vector<std::string>& names) {
  for (const auto& [name, bytes] : initial) {
    if (name.starts_with("optimizer/")) continue;
    const bool frozen = std::find(names.begin(), names.end(), name) != names.end();
    ASSERT_TRUE(trained.contains(name)) << name;
    EXPECT_EQ(trained.at(name) == bytes, frozen) << name;
    EXPECT_EQ(trained.contains("optimizer/first_moment/" + name), !frozen) << name;
  }
}

TEST_F(Frozen, KeepTheirValuesAndHaveNoStates) {
  const TensorMap initial =
      Trained(Net("", ""), 1, {"train.steps=1", "train.learning_rate.base=0"});
  ASSERT_EQ(initial.size(), 3u * 6) << "three layers, each with two parameters and their states";
  const std::vector<std::string> first = {"first.weight", "first.bias"};
  for (const int ranks : {1, 3}) {
    for (const bool sharded : {false, true}) {
      const std::vector<std::string> more = {Sharded(sharded)};
      SCOPED_TRACE(std::to_string(ranks) + " ranks, " + Sharded(sharded));
      ExpectFrozen(Trained(Net("", ""), ranks, more), initial, {});
      ExpectFrozen(Trained(Net("trainable: false", ""), ranks, more), initial, first);
      ExpectFrozen(Trained(Net("", "frozen: \"first\""), ranks, more), initial, first);
      // In the middle: gradients go through it.
      ExpectFrozen(Trained(Net("", "frozen: \"second.w\" frozen: \"last.bias\""), ranks, more),
                   initial, {"second.weight", "last.bias"});
    }
  }
}

// Frozen layers are constants for the others, which become what they become when they alone are
// trained: whoever freezes by `trainable` or by `frozen` gets the same.
TEST_F(Frozen, ByLayerAndByNameAreTheSame) {
  const TensorMap by_layer = Trained(Net("trainable: false", ""), 2);
  EXPECT_EQ(Trained(Net("", "frozen: \"first.\""), 2), by_layer);
  EXPECT_NE(Trained(Net("", ""), 2), by_layer);
}

TEST_F(Frozen, GoOnFromACheckpointToTheBit) {
  ExpectGoesOnToTheBit(Net("trainable: false", "frozen: \"last.bias\""), 2, {"train.steps=20"});
}

}  // namespace
}  // namespace engine::testing
