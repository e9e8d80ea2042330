// `engine simulate` as a user runs it.
#include <nlohmann/json.hpp>

#include "tests/support/matchers.h"
#include "tests/system/cli/cli_test.h"

namespace engine::test {
namespace {

using SimulateCommandTest = CliTest;

TEST_F(SimulateCommandTest, ComparesSchedulersFromAConfiguration) {
  const Outcome outcome =
      Run("simulate run.pbtxt --ranks 2,8 --bandwidth 10mbit "
          "--schedulers sequential_sched,fifo_sched --measured-steps 2");
  EXPECT_EQ(outcome.err, "");
  EXPECT_THAT(Output(outcome),
              AllOf(HasSubstr("10 Mbit/s each way, of which 0.956 payload; exchange"),
                    HasSubstr("\nsequential_sched\n"), HasSubstr("\nfifo_sched\n"),
                    HasSubstr("ranks   step ms"), HasSubstr("fastest first")));
}

TEST_F(SimulateCommandTest, TakesTheTimesOfATrace) {
  Output(RunConfig("-n 2 --trace run.json"));
  const std::string command = "simulate run.json --ranks 2..16 --bandwidth 1mbit --json";
  const std::string out = Output(Run(command));
  const auto json = nlohmann::json::parse(out);
  ASSERT_EQ(json["schedulers"].size(), 1);
  EXPECT_EQ(json["schedulers"][0]["name"], "fifo_sched");
  const auto& rows = json["schedulers"][0]["predictions"];
  ASSERT_EQ(rows.size(), 5);  // 1, 2, 4, 8, 16
  EXPECT_EQ(rows[1]["samples_per_rank"], 4);
  EXPECT_LT(rows[1]["step_seconds"], rows[4]["step_seconds"]);
  // Nothing is measured, so nothing differs.
  EXPECT_EQ(Output(Run(command)), out);
  EXPECT_THAT(Output(Run(command + " --schedulers sequential_sched")),
              HasSubstr("\"sequential_sched\""));
}

TEST_F(SimulateCommandTest, RefusesWhatItCannotUse) {
  EXPECT_EQ(Run("simulate run.pbtxt").exit_code, 2);  // no --bandwidth
  folder_.Write("broken.json", "{ \"traceEvents\": []");
  ExpectRefused({
      {"simulate run.pbtxt --bandwidth fast", 2, HasSubstr("375mbit")},
      {"simulate run.pbtxt --bandwidth 1gbit --ranks 4097", 2, HasSubstr("2..4096")},
      {"simulate run.pbtxt --bandwidth 1gbit --ranks 2,4,6 --gpus-per-node 4", 2,
       HasSubstr("6 ranks are no whole number of hosts of 4")},
      {"simulate gone.pbtxt --bandwidth 1gbit", 66, HasSubstr("gone.pbtxt")},
      {"simulate run.pbtxt --bandwidth 1gbit --schedulers fifo_shed", 79, HasSubstr("fifo_sched")},
      {"simulate broken.json --bandwidth 1gbit", 65, HasSubstr("broken.json")},
  });
}

}  // namespace
}  // namespace engine::test
