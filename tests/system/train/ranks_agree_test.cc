// That ranks have the same parameters is looked at, and that those which should not have is not;
// ranks that come late to an evaluation are waited for.

#include <fstream>
#include <string>
#include <vector>

#include "app/launch/launch.h"
#include "app/run/training.h"
#include "tests/support/matchers.h"
#include "tests/system/train/run_test.h"

namespace engine::test {
namespace {

using RanksAgree = RunTest;

const std::string kOddRank = ENGINE_TEST_FIXTURES "/libengine_odd_rank.so";

Training TrainOdd(int ranks, std::vector<std::string> more) {
  more.push_back("odd_rank.parameter=linear2.weight");
  return TrainWithThreads(kMlp, Members{.ranks = ranks}, more, /*expect_ok=*/false);
}
std::string Odd(const std::string& optimizer = "sgd") {
  return Plugins("tcp", "priority_sched", optimizer, "," + kOddRank);
}

TEST_F(RanksAgree, OneValueOfOneRankIsFoundAtTheNextCheck) {
  const Training run = TrainOdd(2, {Odd(), "odd_rank.step=9", "train.check_ranks_every=4"});
  EXPECT_STREQ(run.status.message(),
               "ranks diverged: parameters were the same on all ranks after step 8; after step 12 "
               "rank 1 differs from rank 0 first in 'linear2.weight': resume from a checkpoint of "
               "before, and look for a plugin that does not compute the same on all ranks, or for "
               "bad memory");
  EXPECT_EQ(run.exit_code, 79);
  EXPECT_EQ(run.losses.size(), 12u) << "the check of step 12 comes with the statistics of step 13";
}

TEST_F(RanksAgree, TheMinorityIsNamed) {
  const Training run = TrainOdd(3, {Odd("adamw"), "odd_rank.step=2", "odd_rank.rank=0",
                                    "train.check_ranks_every=2", "train.micro_batches=2"});
  EXPECT_THAT(run.status.message(),
              HasSubstr("ranks diverged: after step 2 rank 0 differs from rank 1 first in "
                        "'linear2.weight': "));
  EXPECT_EQ(run.status.rank(), 0);
}

// A learning rate of 0 leaves the parameters alone.
TEST_F(RanksAgree, StatesOfTheOptimizerAreCompared) {
  const Training run =
      TrainOdd(2, {Odd("adamw"), "odd_rank.step=3", "train.check_ranks_every=1",
                   "train.learning_rate.base=0", "train.learning_rate.warmup_steps=0"});
  EXPECT_THAT(run.status.message(),
              AllOf(HasSubstr("same on all ranks after step 2; after step 3 rank 1 differs"),
                    HasSubstr("first in state 'first_moment' of 'linear2.weight'")));
}

TEST_F(RanksAgree, ACheckpointOfRanksThatDifferIsNotWritten) {
  const std::string file = folder_ / "run.st";
  const Training run = TrainOdd(2, {Odd(), "odd_rank.step=20", "output.checkpoint=" + file});
  EXPECT_THAT(run.status.message(), HasSubstr("after step 20 rank 1 differs from rank 0"));
  EXPECT_FALSE(std::ifstream(file).good());
  const Training unseen = TrainOdd(
      2, {Odd(), "odd_rank.step=3", "train.check_ranks_every=0", "output.checkpoint=" + file});
  EXPECT_TRUE(unseen.status.ok()) << unseen.status.message();
}

// Of what ranks may have of their own nothing is compared.
TEST_F(RanksAgree, RunsInOrderPassEveryCheck) {
  const auto passes = [&](const std::string& config, const Members& members,
                          std::vector<std::string> more) {
    more.insert(more.end(), {"train.check_ranks_every=1", "train.checkpoint_every=7"});
    Train(config, members, "run", more);
  };
  for (const std::string& scheduler : kSchedulers) {
    for (const bool sharded : {false, true}) {
      passes(kMlp, {.ranks = 3}, {Plugins("shm", scheduler, "adamw"), Sharded(sharded)});
    }
  }
  passes(kMlp, {.ranks = 2}, {Plugins("shm", "fifo_sched", "sgd", ",topk")});
  passes(kMlp, {.ranks = 2},
         {Plugins("tcp", "dear_sched", "adamw", ",cast_bf16"), "train.micro_batches=3"});
  passes(kMlp, {.ranks = 2}, {Plugins("null", "fifo_sched")});
  const std::string own_statistics =
      "seed: 3 model { net { layer { linear { units: 16 } } layer { batch_norm { sync: false } } "
      "layer { relu {} } layer { linear { units: 4 } } } }\n"
      "data { synthetic { samples: 50 eval_samples: 21 shape: 8 classes: 4 } }\n"
      "train { steps: 12 global_batch: 15 learning_rate { base: 0.1 } }\n"
      "plugins: [\"tcp\", \"priority_sched\", \"sgd\", \"cpu_ops\"] cpu_ops { threads: 1 }\n";
  passes(own_statistics, {.ranks = 2}, {});
#ifdef ENGINE_TEST_ZMQ_PS
  const std::string served = Plugins("zmq_ps", "priority_sched", "adamw");
  for (const std::string update : {"sync", "async"}) {
    passes(Gpt("tied: false"), {.ranks = 2, .servers = 1},
           {served, "zmq_ps.update=" + update, "train.sparse_pull=true"});
  }
#endif
}

// Another file of the same name and version, which even does the same.
TEST_F(RanksAgree, APluginWhoseFileDiffersIsNamedAtTheStart) {
  const std::string sgd = ReadWhole(ENGINE_TEST_PLUGIN_DIR "/libengine_sgd.so");
  folder_.Write("libengine_sgd.so", sgd + "x");
  const auto config_of = [&](const std::vector<std::string>& folders) {
    return config::Config::Load({.text = kMlp, .origin = "test", .plugin_folders = folders});
  };
  const auto usual = config_of({ENGINE_TEST_PLUGIN_DIR});
  const auto other = config_of({folder_.path(), ENGINE_TEST_PLUGIN_DIR});
  ASSERT_TRUE(usual.ok() && other.ok()) << other.status().message();
  run::RunObserver observer;
  const launch::LaunchOutcome outcome =
      launch::Launch({.mode = launch::LaunchPlan::Mode::kThreads, .info = {.world_size = 2}}, {},
                     [&](base::RankContext& rank) {
                       const config::Config& config = rank.info.rank == 1 ? *other : *usual;
                       return run::MakeTrainer(config, rank, observer, nullptr, "").status();
                     });
  EXPECT_THAT(outcome.status.message(),
              ::testing::MatchesRegex(
                  "another configuration than rank 0 \\(plugins\\): rank 1 has 'sgd [0-9.]+, "
                  "file xxh3_128:[0-9a-f]+' and rank 0 has 'sgd [0-9.]+, file xxh3_128:[0-9a-f]+'; "
                  "start all of them with the same"));
  EXPECT_EQ(outcome.exit_code, 78);
}

TEST_F(RanksAgree, ARankMayTakeLongerThanATransferToBegin) {
  const Training run =
      TrainWithThreads(kMlp, 2, {Odd(), "odd_rank.pause_ms=1500", "communication.timeout_ms=700"});
  EXPECT_EQ(run.losses.size(), 20u);
}

TEST_F(RanksAgree, ARankMayTakeLongerThanATransferToEvaluate) {
  const Training run =
      TrainWithThreads("seed: 3 model { mlp { hidden: [4] } } plugin_path: \"" ENGINE_TEST_FIXTURES
                       "\" data { prefetch: 0 odd_data { pause_ms: 1500 } }\n"
                       "train { steps: 2 global_batch: 8 learning_rate { base: 0.1 } }\n"
                       "communication { timeout_ms: 700 } cpu_ops { threads: 1 }\n"
                       "plugins: [\"tcp\", \"fifo_sched\", \"sgd\", \"cpu_ops\"]\n",
                       2);
  EXPECT_EQ(run.evaluations.size(), 1u);
}

}  // namespace
}  // namespace engine::test
