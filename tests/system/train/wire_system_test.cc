// Whole runs whose gradients travel in another form: cast_bf16, cast_fp16, topk.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/support/engine_process.h"
#include "tests/support/temp_folder.h"
#include "tests/support/training.h"

namespace engine::testing {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;

constexpr char kHead[] =
    "seed: 3 model { mlp { hidden: [48, 32] } }\n"
    "data { synthetic { samples: 200 eval_samples: 20 shape: 16 classes: 4 } }\n"
    "train { steps: 60 global_batch: 24 learning_rate { base: 0.05 } }\n"
    "sgd { momentum: 0.9 weight_decay: 0.001 } cpu_ops { threads: 1 }\n";

std::string Config(const std::string& hook, const std::string& scheduler = "fifo_sched",
                   const std::string& communicator = "tcp") {
  return std::string(kHead)
      .append("plugins: [\"")
      .append(communicator)
      .append("\", \"")
      .append(scheduler)
      .append("\", \"sgd\", \"cpu_ops\"")
      .append(hook.empty() ? "" : std::string(", \"").append(hook).append("\""))
      .append("]\n");
}

void ExpectAllRanksEqual(const Training& training) {
  ASSERT_FALSE(training.parameters.empty());
  ASSERT_FALSE(training.parameters[0].empty());
  for (size_t r = 1; r < training.parameters.size(); ++r) {
    const auto& one = training.parameters[0];
    const auto& other = training.parameters[r];
    ASSERT_EQ(one.size(), other.size());
    EXPECT_EQ(std::memcmp(one.data(), other.data(), one.size() * sizeof(float)), 0) << "rank " << r;
  }
}

class WireRun : public ::testing::Test {
 protected:
  std::vector<std::string> WithCheckpoint(const std::string& name,
                                          std::vector<std::string> more = {}) const {
    more.push_back("output.checkpoint=" + (folder_ / name));
    more.push_back("train.checkpoint_every=30");
    return more;
  }

  // Bytes of gradients in a step, of all ranks, as the trace has them.
  uint64_t GradientBytes(const std::string& config) {
    TrainWithThreads(config, 2, {"output.trace=" + (folder_ / "trace.json"), "train.steps=3"});
    std::ifstream file(folder_ / "trace.json");
    uint64_t bytes = 0;
    const auto trace = nlohmann::json::parse(file);
    for (const auto& rank : trace.at("engine").at("ranks")) {
      for (const auto& task : rank.at("tasks")) {
        if (task.at("kind") == "transfer" && task.contains("unit")) {
          bytes += task.at("size_bytes").get<uint64_t>();
        }
      }
    }
    return bytes;
  }

  TempFolder folder_;
};

struct Variant {
  const char* scheduler;
  std::vector<std::string> overrides;
};
const std::vector<Variant> kVariants = {
    {"sequential_sched", {}},
    {"fifo_sched", {"fifo_sched.fuse_bytes=1000", "fifo_sched.slice_bytes=600"}},
    {"priority_sched", {"priority_sched.slice_bytes=600", "priority_sched.credit_bytes=1500"}},
    {"dear_sched", {"dear_sched.group_bytes=2000"}},
};

// Of 20 steps; the sums of two ranks are rounded once, wherever a scheduler cuts gradients.
TEST_F(WireRun, CastsTrainAsFloat32DoesUnderAllSchedulers) {
  struct Cast {
    const char* hook;
    double tolerance;
  };
  for (const int ranks : {2, 3}) {
    const Training plain =
        TrainWithThreads(Config(""), ranks, WithCheckpoint("plain", {"train.steps=20"}));
    for (const Cast& cast : {Cast{"cast_bf16", 0.05}, Cast{"cast_fp16", 0.01}}) {
      std::map<std::string, std::vector<uint8_t>> first;
      for (Variant variant : kVariants) {
        for (const char* shard : {"false", "true"}) {
          SCOPED_TRACE(std::string(cast.hook) + ", " + variant.scheduler + ", ranks " +
                       std::to_string(ranks) + ", sharded " + shard);
          std::vector<std::string> overrides = WithCheckpoint("run", variant.overrides);
          overrides.push_back(std::string("train.shard_optimizer=").append(shard));
          overrides.push_back("train.steps=20");
          const Training run =
              TrainWithThreads(Config(cast.hook, variant.scheduler), ranks, overrides);
          ExpectAllRanksEqual(run);
          const auto tensors = TensorsOf(folder_ / "run");
          EXPECT_NE(tensors, TensorsOf(folder_ / "plain")) << "rounding must show";
          ExpectSameTensors(folder_ / "run", folder_ / "plain", cast.tolerance);
          ExpectSameLosses(run.losses, plain.losses, cast.tolerance, "losses");
          if (first.empty()) first = tensors;
          if (ranks == 2) {
            EXPECT_EQ(tensors, first);
          }
        }
      }
    }
  }
}

TEST_F(WireRun, TopKGivesAllRanksTheSameBitsUnderAllSchedulers) {
  for (const int ranks : {2, 3}) {
    for (Variant variant : kVariants) {
      SCOPED_TRACE(std::string(variant.scheduler) + ", ranks " + std::to_string(ranks));
      const Training run =
          TrainWithThreads(Config("topk", variant.scheduler), ranks, variant.overrides);
      ExpectAllRanksEqual(run);
      EXPECT_LT(run.losses.back(), run.losses.front());
    }
  }
}

TEST_F(WireRun, SharedMemoryAndSocketsGiveTheSameBits) {
  for (const char* hook : {"cast_bf16", "topk"}) {
    const Training sockets = TrainWithThreads(Config(hook), 2);
    const Training shared = TrainWithThreads(Config(hook, "fifo_sched", "shm"), 2);
    ASSERT_FALSE(sockets.parameters.empty());
    EXPECT_EQ(sockets.parameters, shared.parameters) << hook;
    EXPECT_EQ(sockets.losses, shared.losses) << hook;
  }
}

TEST_F(WireRun, TheTraceShowsTheBytesThatTravel) {
  const uint64_t plain = GradientBytes(Config(""));
  ASSERT_GT(plain, 0u);
  EXPECT_EQ(2 * GradientBytes(Config("cast_bf16")), plain);
  EXPECT_EQ(2 * GradientBytes(Config("cast_fp16")), plain);
  // 1 % of the elements, 8 bytes each, of two ranks; and what the small ones are rounded up to.
  EXPECT_LT(GradientBytes(Config("topk")), plain / 4);
}

// With a twentieth of the elements in each step the loss comes down to about where it does with
// all of them.
TEST_F(WireRun, TopKConverges) {
  const std::vector<std::string> longer = {"train.steps=300"};
  const Training plain = TrainWithThreads(Config(""), 2, longer);
  const Training sparse =
      TrainWithThreads(Config("topk").append("topk { ratio: 0.05 }\n"), 2, longer);
  ASSERT_EQ(plain.losses.size(), sparse.losses.size());
  ASSERT_EQ(sparse.evaluations.size(), 1u);
  const double first = plain.losses.front(), last = plain.losses.back();
  EXPECT_LT(last, 0.5 * first);
  EXPECT_LT(sparse.losses.back(), last + 0.1 * (first - last));
}

TEST_F(WireRun, AResumedRunIsTheUninterruptedOneToTheBit) {
  for (const char* hook : {"topk", "cast_bf16"}) {
    for (const int ranks : {1, 2, 3}) {
      SCOPED_TRACE(std::string(hook) + ", ranks " + std::to_string(ranks));
      const Training whole = TrainWithThreads(Config(hook), ranks, WithCheckpoint("whole"));
      const auto expected = TensorsOf(folder_ / "whole");
      TrainWithThreads(Config(hook), {.ranks = ranks, .dies_after = 40}, WithCheckpoint("part"),
                       /*expect_ok=*/false);
      EXPECT_NE(TensorsOf(folder_ / "part"), expected);
      const Training rest = TrainWithThreads(
          Config(hook), {.ranks = ranks, .resume = folder_ / "part"}, WithCheckpoint("part"));
      EXPECT_EQ(TensorsOf(folder_ / "part"), expected);
      EXPECT_EQ(rest.losses, std::vector<double>(whole.losses.begin() + 30, whole.losses.end()));
      for (const auto& [name, bytes] : expected) {
        if (name.starts_with("optimizer/") || name.starts_with("hook/")) continue;
        for (int rank = 0; rank < 3; ++rank) {
          const bool stored =
              expected.contains("hook/topk/residual/" + std::to_string(rank) + "/" + name);
          EXPECT_EQ(stored, std::string(hook) == "topk" && ranks > 1 && rank < ranks) << name;
        }
      }
    }
  }
}

std::vector<float> Floats(const std::vector<uint8_t>& bytes) {
  std::vector<float> values(bytes.size() / sizeof(float));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

// One step that sends everything, with what was kept before and without.
TEST_F(WireRun, AnotherNumberOfRanksGoesOnWithTheSumOfWhatWasNotSent) {
  TrainWithThreads(Config("topk"), {.ranks = 2, .dies_after = 40}, WithCheckpoint("two"), false);
  const auto two = TensorsOf(folder_ / "two");
  const Training rest = TrainWithThreads(
      Config("topk"), {.ranks = 3, .resume = folder_ / "two"},
      WithCheckpoint("three", {"topk.ratio=1", "train.steps=31", "sgd.momentum=0",
                               "sgd.weight_decay=0", "train.learning_rate.base=1"}));
  ASSERT_EQ(rest.losses.size(), 1u);
  ExpectAllRanksEqual(rest);
  const Training without = TrainWithThreads(
      Config(""), {.ranks = 3, .resume = folder_ / "two"},
      WithCheckpoint("plain", {"train.steps=31", "sgd.momentum=0", "sgd.weight_decay=0",
                               "train.learning_rate.base=1"}));
  const auto three = TensorsOf(folder_ / "three");
  const auto plain = TensorsOf(folder_ / "plain");
  double largest = 0;
  for (const auto& [name, bytes] : plain) {
    if (name.starts_with("optimizer/")) continue;
    // The step was larger by what two ranks had kept, over 24 samples.
    const auto first = Floats(two.at("hook/topk/residual/0/" + name));
    const auto second = Floats(two.at("hook/topk/residual/1/" + name));
    const auto with = Floats(three.at(name)), base = Floats(bytes);
    for (size_t i = 0; i < base.size(); ++i) {
      const double kept = (double{first[i]} + second[i]) / 24;
      largest = std::max(largest, std::abs(kept));
      ASSERT_NEAR(base[i] - with[i], kept, 1e-5) << name << " at " << i;
    }
    for (const char* rank : {"0/", "1/", "2/"}) {
      EXPECT_THAT(Floats(three.at(std::string("hook/topk/residual/").append(rank) + name)),
                  Each(0.0f));
    }
  }
  EXPECT_GT(largest, 1e-3) << "something must have been kept";
}

TEST_F(WireRun, WhatDoesNotGoTogetherIsRefusedInASentence) {
  folder_.Write("run.pbtxt", Config("topk"));
  const auto refuses = [&](std::vector<std::string> more, const std::string& sentence) {
    std::vector<std::string> arguments = {"run", "run.pbtxt", "-n", "2"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const Outcome outcome = RunEngine(folder_.path().native(), arguments);
    EXPECT_EQ(outcome.exit_code, 78) << outcome.err;
    EXPECT_THAT(outcome.err, HasSubstr(sentence));
  };
  refuses({"--set", "train.shard_optimizer=true"},
          "hook 'topk' packs whole gradients, and train.shard_optimizer gives each rank a part of "
          "each: set it to false or choose another hook");
  refuses({"--plugins", "cast_bf16,topk"},
          "hooks 'topk' and 'cast_bf16' both say in which form gradients travel: choose one");
}

// float16 ends at 65504. The run ends with the step after that, and keeps no checkpoint of it.
TEST_F(WireRun, AnOverflowEndsTheRun) {
  folder_.Write("run.pbtxt", Config("cast_fp16"));
  const Outcome outcome = RunEngine(folder_.path().native(),
                                    {"run", "run.pbtxt", "-n", "2", "--set", "train.loss_scale=1e7",
                                     "--set", "output.checkpoint=model"});
  EXPECT_EQ(outcome.exit_code, 78) << outcome.err;
  EXPECT_THAT(outcome.err,
              AllOf(HasSubstr("the loss of step 2 is not finite"), HasSubstr("train.loss_scale")));
  EXPECT_FALSE(std::filesystem::exists(folder_ / "model"));
}

// Warnings are of the log of rank 0.
TEST_F(WireRun, StatesThatCannotGoOnAreNamed) {
  folder_.Write("run.pbtxt", Config("topk"));
  TrainWithThreads(Config("topk"), {.ranks = 2, .dies_after = 40}, WithCheckpoint("two"), false);
  const auto warns = [&](const std::string& file, const std::string& ranks,
                         std::vector<std::string> more, const std::string& sentence) {
    folder_.Write("other.pbtxt", Config(more.empty() ? "topk" : ""));
    const Outcome outcome =
        RunEngine(folder_.path().native(), {"run", more.empty() ? "run.pbtxt" : "other.pbtxt", "-n",
                                            ranks, "--resume", file, "--set", "train.steps=31"});
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    EXPECT_THAT(outcome.err, HasSubstr(sentence));
  };
  warns("two", "3", {},
        "the state of hook 'topk' in the checkpoint is that of 2 ranks, and this run has 3: rank 0 "
        "goes on with their sum");
  warns("two", "2", {"without"},
        "this run has no use for the state of hook 'topk' in the checkpoint: it is dropped");
  TrainWithThreads(Config(""), {.ranks = 2, .dies_after = 40}, WithCheckpoint("plain"), false);
  warns("plain", "2", {}, "the checkpoint has no state of hook 'topk': it begins with zeros");
}

}  // namespace
}  // namespace engine::testing
