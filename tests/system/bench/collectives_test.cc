// Sweeps over processes, short ones.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/system/cli/cli_test.h"

namespace engine::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

class BenchCollectives : public CliTest {
 protected:
  Outcome Bench(const std::vector<std::string>& more) const {
    std::vector<std::string> arguments = {"bench",     "collectives", "-n",       "2",
                                          "--seconds", "0.002",       "--blocks", "1"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return Run(arguments);
  }
};

TEST_F(BenchCollectives, PrintsWhatReadersOfNcclTestsExpect) {
  const Outcome outcome =
      Bench({"--a", "tcp", "--max-bytes", "64K", "--factor", "128", "--format", "nccl-tests"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  std::vector<std::vector<std::string>> rows;
  std::istringstream lines(outcome.out);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("#")) continue;
    std::istringstream words(line);
    rows.emplace_back(std::istream_iterator<std::string>(words),
                      std::istream_iterator<std::string>());
  }
  ASSERT_EQ(rows.size(), 3u) << outcome.out;  // 4, 512, 64 Ki
  for (const auto& row : rows) {
    ASSERT_EQ(row.size(), 13u);
    EXPECT_EQ(std::stoll(row[0]), 4 * std::stoll(row[1]));
    EXPECT_EQ(row[2] + row[3] + row[4], "floatsum-1");
    EXPECT_GT(std::stod(row[5]), 0);
    EXPECT_GT(std::stod(row[9]), 0);
    EXPECT_EQ(row[8] + row[12], "00");
  }
  EXPECT_EQ(rows.back()[0], "65536");
  EXPECT_THAT(outcome.out, HasSubstr("# Out of bounds values : 0 OK\n"));
}

TEST_F(BenchCollectives, MeasuresEveryKind) {
  for (const std::string kind : {"reduce_scatter", "all_gather", "broadcast"}) {
    const Outcome outcome = Bench({"--a", "tcp", "--kind", kind, "--min-bytes", "1000",
                                   "--max-bytes", "1000", "--format", "json"});
    ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
    const auto json = nlohmann::json::parse(outcome.out);
    ASSERT_EQ(json["rows"].size(), 1u);
    for (const char* placement : {"in_place", "out_of_place"}) {
      const auto& timing = json["rows"][0][placement]["A"];
      EXPECT_EQ(timing["wrong"], 0) << kind;
      EXPECT_GT(timing["iterations"], 0) << kind;
      EXPECT_LE(timing["time_us"]["median"], timing["time_us"]["p99"]) << kind;
    }
  }
}

TEST_F(BenchCollectives, ComparesTwo) {
  const Outcome outcome = Bench({"--a", "tcp", "--b", "tcp", "--b-set", "tcp.io_threads=1",
                                 "--min-bytes", "4K", "--max-bytes", "4K"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, AllOf(HasSubstr("io_threads=1"), HasSubstr("4 KiB"),
                                 HasSubstr("Of 1 sizes B is faster at")));
}

TEST_F(BenchCollectives, NamesAWrongResult) {
  const Outcome outcome = Bench({"--a", "tcp", "--b", ENGINE_TEST_WRONG_COMM, "--max-bytes", "1K",
                                 "--factor", "16", "--format", "csv"});
  EXPECT_EQ(outcome.exit_code, 79);
  EXPECT_THAT(outcome.err,
              AllOf(HasSubstr("communicator 'wrong_comm' (B) gives wrong results: all-reduce of "
                              "1024 bytes out-of-place: element 255 of rank 0 is"),
                    HasSubstr("instead of")));
  // Wrong sizes have no times, right ones have.
  EXPECT_THAT(outcome.out, HasSubstr("B,wrong_comm,all-reduce,2,1024,256,in-place,0,"));
  EXPECT_EQ(outcome.out.find("B,wrong_comm,all-reduce,2,64,16,in-place,0,"), std::string::npos);
}

TEST_F(BenchCollectives, RefusesWhatCannotTakePart) {
  EXPECT_THAT(Refusal(Bench({"--a", "sgd"}), 79), HasSubstr("is no communicator"));
  EXPECT_THAT(Refusal(Bench({"--a", "./libmine.so"}), 79), HasSubstr("libmine.so"));
  EXPECT_THAT(Refusal(Bench({"--a", "tcp", "--a-set", "io_thread=1"}), 78),
              HasSubstr("did you mean 'io_threads'"));
  EXPECT_THAT(Refusal(Bench({"--a", "tcp", "--min-bytes", "4X"}), 2),
              HasSubstr("--min-bytes '4X'"));
}

TEST_F(BenchCollectives, RanksMayComeFromALauncher) {
  std::vector<std::unique_ptr<EngineProcess>> ranks;
  for (const char* rank : {"0", "1"}) {
    ranks.push_back(std::make_unique<EngineProcess>(
        folder_.path().native(),
        std::vector<std::string>{"bench", "collectives", "--a", "tcp", "--max-bytes", "4",
                                 "--seconds", "0.002", "--blocks", "1", "--rendezvous",
                                 "127.0.0.1:" + std::to_string(20000 + getpid() % 10000)},
        std::map<std::string, std::string>{
            {"RANK", rank}, {"WORLD_SIZE", "2"}, {"LOCAL_RANK", rank}, {"LOCAL_WORLD_SIZE", "2"}}));
  }
  const Outcome first = ranks[0]->Wait(), second = ranks[1]->Wait();
  EXPECT_EQ(first.exit_code, 0) << first.err;
  EXPECT_EQ(second.exit_code, 0) << second.err;
  EXPECT_THAT(first.out, StartsWith("all-reduce of float32 in place, 2 ranks (torchrun)"));
  EXPECT_EQ(second.out, "");
}

}  // namespace
}  // namespace engine::testing
