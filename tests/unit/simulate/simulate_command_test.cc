// `engine simulate` as a user runs it.
#include <nlohmann/json.hpp>

#include "tests/system/cli/cli_test.h"

namespace engine::testing {
namespace {

using ::testing::HasSubstr;

class SimulateCommandTest : public CliTest {
 protected:
  Outcome Simulate(std::vector<std::string> arguments) const {
    arguments.insert(arguments.begin(), "simulate");
    return Run(std::move(arguments));
  }
};

TEST_F(SimulateCommandTest, ComparesSchedulersFromAConfiguration) {
  const Outcome outcome =
      Simulate({"run.pbtxt", "--ranks", "2,8", "--bandwidth", "10mbit", "--schedulers",
                "sequential_sched,fifo_sched", "--measured-steps", "2"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(outcome.err, "");
  EXPECT_THAT(outcome.out, HasSubstr("10 Mbit/s each way, of which 0.956 payload; exchange"));
  EXPECT_THAT(outcome.out, HasSubstr("\nsequential_sched\n"));
  EXPECT_THAT(outcome.out, HasSubstr("\nfifo_sched\n"));
  EXPECT_THAT(outcome.out, HasSubstr("fastest first"));
}

TEST_F(SimulateCommandTest, TakesTheTimesOfATrace) {
  ASSERT_EQ(RunConfig({"-n", "2", "--trace", "run.json"}).exit_code, 0);
  const auto simulate = [&](std::vector<std::string> more) {
    more.insert(more.begin(), {"run.json", "--ranks", "2..16", "--bandwidth", "1gbit", "--json"});
    return Simulate(more);
  };
  const Outcome outcome = simulate({});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const auto json = nlohmann::json::parse(outcome.out);
  ASSERT_EQ(json["schedulers"].size(), 1);
  EXPECT_EQ(json["schedulers"][0]["name"], "fifo_sched");
  const auto& rows = json["schedulers"][0]["predictions"];
  ASSERT_EQ(rows.size(), 5);  // 1, 2, 4, 8, 16
  EXPECT_EQ(rows[1]["samples_per_rank"], 4);
  EXPECT_LT(rows[1]["step_seconds"], rows[4]["step_seconds"]);
  // Nothing is measured, so nothing differs.
  EXPECT_EQ(simulate({}).out, outcome.out);
  const Outcome other = simulate({"--schedulers", "sequential_sched"});
  EXPECT_THAT(other.out, HasSubstr("\"sequential_sched\"")) << other.err;
}

TEST_F(SimulateCommandTest, RefusesWhatItCannotUse) {
  EXPECT_EQ(Simulate({"run.pbtxt"}).exit_code, 2);  // no --bandwidth
  EXPECT_THAT(Refusal(Simulate({"run.pbtxt", "--bandwidth", "fast"}), 2), HasSubstr("375mbit"));
  EXPECT_THAT(Refusal(Simulate({"run.pbtxt", "--bandwidth", "1gbit", "--ranks", "4097"}), 2),
              HasSubstr("2..4096"));
  EXPECT_THAT(Refusal(Simulate({"gone.pbtxt", "--bandwidth", "1gbit"}), 66),
              HasSubstr("gone.pbtxt"));
  EXPECT_THAT(
      Refusal(Simulate({"run.pbtxt", "--bandwidth", "1gbit", "--schedulers", "fifo_shed"}), 79),
      HasSubstr("fifo_sched"));
  folder_.Write("broken.json", "{ \"traceEvents\": []");
  EXPECT_THAT(Refusal(Simulate({"broken.json", "--bandwidth", "1gbit"}), 65),
              HasSubstr("broken.json"));
}

}  // namespace
}  // namespace engine::testing
