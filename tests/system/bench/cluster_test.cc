// What to use on the ranks of this run, asked in little time.
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "bench/cluster/decision.h"
#include "tests/support/expect_status.h"
#include "tests/system/cli/cli_test.h"

namespace engine::test {
namespace {

using BenchCluster = CliTest;

constexpr char kCluster[] =
    "bench cluster -n 2 -q --kinds all_reduce -b 4 -e 1K -f 256 --seconds 0.002 --blocks 1 ";

TEST_F(BenchCluster, MeasuresWhatRunsAndNamesWhatDoesNot) {
  const std::string out = Output(
      Run(std::string(kCluster) + "--communicators tcp,gloo,null --dtypes float32 --out out"));
  EXPECT_THAT(out, AllOf(HasSubstr("left out: null: it moves nothing\n"),
                         HasSubstr("Two ranks, same host (0 and 1)"), HasSubstr("\n4 B  "),
                         HasSubstr("\n1 KiB  "), HasSubstr("~ "),
                         HasSubstr("the default communicator, shm, was not measured")));
  EXPECT_THAT(Read("out/report.html"), AllOf(HasSubstr("Who wins where"), HasSubstr("<svg")));
  const auto sweeps = nlohmann::json::parse(Read("out/results.json"));
  ASSERT_EQ(sweeps.size(), 2u) << "a pair, and all";
  EXPECT_EQ(sweeps[0]["rows"][1]["bytes"], 4 << 20);
  EXPECT_EQ(sweeps[1]["dtype"], "float32");
}

TEST_F(BenchCluster, GoesOnWithoutTheOneThatIsWrong) {
  const Outcome outcome = Run(std::string(kCluster) +
                              "--dtypes float32,bfloat16 --set faulty_communicator.mode=last "
                              "--communicators tcp," ENGINE_TEST_FAULTY);
  EXPECT_EQ(outcome.exit_code, 79);
  EXPECT_THAT(outcome.err, HasSubstr("'faulty_communicator' (faulty_communicator) gives wrong"));
  EXPECT_THAT(
      outcome.out,
      AllOf(HasSubstr("\nsize "), HasSubstr("  wrong  "), HasSubstr("  tcp\n"),
            HasSubstr("left out: faulty_communicator: all-reduce of float32: it gives wrong")));
}

TEST_F(BenchCluster, TrainsEachSide) {
  const std::string out =
      Output(Run(std::string(kCluster) +
                 "--dtypes float32 --communicators tcp --schedulers priority_sched "
                 "--model run.pbtxt --steps 2 --warmup 1"));
  EXPECT_THAT(out, AllOf(HasSubstr("tcp, priority_sched"), HasSubstr("_bytes 4 MiB"),
                         HasSubstr("the defaults")));
}

TEST_F(BenchCluster, ItsFragmentRuns) {
  const std::string rest =
      "seed: 3\nmodel { mlp { hidden: [16] } }\ntrain { steps: 2 global_batch: 8 }\n"
      "data { synthetic { samples: 64 eval_samples: 16 shape: 8 classes: 4 } }\n"
      "plugins: [\"sgd\", \"cpu_ops\"]\n";
  const std::vector<std::string> folders = {ENGINE_TEST_PLUGIN_DIR},
                                 set = {"by_size.second=gloo", "by_size.table=any 4 gloo",
                                        "tcp.io_threads=1", "tcp.interface=lo", "mlp.x=1"};
  const std::string fragment = bench::Fragment(
      {ValueOf(bench::FindContender("", "by_size", set, folders, /*leaves_others=*/true)).choice,
       ValueOf(bench::ChoosePlugin("priority_sched", {"credit_bytes=4194304"}, folders))});
  EXPECT_EQ(fragment,
            "plugins: [\"by_size\", \"priority_sched\"]\n"
            "by_size {\n  table: \"any 4 gloo\"\n  second: \"gloo\"\n}\n"
            "priority_sched {\n  credit_bytes: 4194304\n}\n"
            "tcp {\n  io_threads: 1\n}\n");
  folder_.Write("best.pbtxt", rest + fragment);
  Output(Run("run best.pbtxt -q -n 2"));
}

TEST_F(BenchCluster, AnOverrideForNobodyIsRefused) {
  const Outcome outcome = Run(std::string(kCluster) + "--communicators tcp --set tpc.io_threads=2");
  EXPECT_EQ(outcome.exit_code, 78);
  EXPECT_THAT(outcome.err, HasSubstr("--set tpc.io_threads=2 is for no plugin"));
}

TEST_F(BenchCluster, AConfigurationThatCannotBeIsRefusedBeforeAnythingIsMeasured) {
  const Outcome outcome =
      Run("bench cluster -n 2 --communicators tcp --model run.pbtxt --set train.steppes=1");
  EXPECT_EQ(outcome.exit_code, 78);
  EXPECT_THAT(outcome.err, AllOf(HasSubstr("steppes"), Not(HasSubstr("which communicators"))));
}

}  // namespace
}  // namespace engine::test
