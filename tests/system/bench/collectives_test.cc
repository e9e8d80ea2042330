// Sweeps over processes, short ones.
#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/support/matchers.h"
#include "tests/system/cli/cli_test.h"

namespace engine::test {
namespace {

constexpr char kCollectives[] = "bench collectives --seconds 0.002 --blocks 1 ";

class BenchCollectives : public CliTest {
 protected:
  Outcome Bench(const std::string& more) const { return Run(kCollectives + ("-n 2 " + more)); }
};

TEST_F(BenchCollectives, PrintsWhatReadersOfNcclTestsExpect) {
  const std::string out = Output(Bench("--a tcp --max-bytes 64K --factor 128 --format nccl-tests"));
  std::vector<std::vector<std::string>> rows;
  std::istringstream lines(out);
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with("#")) rows.push_back(Words(line));
  }
  ASSERT_EQ(rows.size(), 3u) << out;  // 4, 512, 64 Ki
  for (const auto& row : rows) {
    ASSERT_EQ(row.size(), 13u);
    EXPECT_EQ(std::stoll(row[0]), 4 * std::stoll(row[1]));
    EXPECT_EQ(row[2] + row[3] + row[4], "floatsum-1");
    EXPECT_GT(std::stod(row[5]), 0);
    EXPECT_GT(std::stod(row[9]), 0);
    EXPECT_EQ(row[8] + row[12], "00");
  }
  EXPECT_EQ(rows.back()[0], "65536");
  EXPECT_THAT(out, HasSubstr("# Out of bounds values : 0 OK\n"));
}

TEST_F(BenchCollectives, MeasuresEveryKindInTurns) {
  for (const std::string kind : {"all_reduce", "reduce_scatter", "all_gather", "broadcast"}) {
    SCOPED_TRACE(kind);
    const auto json = nlohmann::json::parse(Output(
        Bench("--a tcp --b null --min-bytes 1000 --max-bytes 1000 --format json --kind " + kind)));
    ASSERT_EQ(json["rows"].size(), 1u);
    for (const char* placement : {"in_place", "out_of_place"}) {
      const auto& row = json["rows"][0][placement];
      EXPECT_EQ(row["A"]["wrong"], 0);
      EXPECT_TRUE(row["B"]["wrong"].is_null()) << "nothing is moved";
      EXPECT_EQ(row["ratio"]["by_pair"].size(), 2u) << row;
      for (const char* side : {"A", "B"}) {
        EXPECT_GE(row[side]["iterations"], 6);
        EXPECT_GT(row[side]["time_us"]["median"], 0);
        EXPECT_LE(row[side]["time_us"]["median"], row[side]["time_us"]["p99"]);
      }
    }
  }
}

TEST_F(BenchCollectives, ComparesTwo) {
  EXPECT_THAT(
      Output(Bench("--a tcp --b tcp --b-set tcp.io_threads=1 --min-bytes 4K --max-bytes 4K")),
      AllOf(HasSubstr("io_threads=1"), HasSubstr("4 KiB"), HasSubstr("Of 1 sizes B is faster at")));
}

TEST_F(BenchCollectives, NamesAWrongResult) {
  const Outcome outcome = Bench(
      "--a tcp --max-bytes 1K --factor 16 --format csv --b-set mode=last --b " ENGINE_TEST_FAULTY);
  EXPECT_EQ(outcome.exit_code, 79);
  EXPECT_THAT(outcome.err,
              AllOf(HasSubstr("communicator 'faulty_communicator' (B) gives wrong results: "
                              "all-reduce of 1024 bytes out-of-place: element 255 of rank 0 is"),
                    HasSubstr("instead of")));
  // Wrong sizes have no times, right ones have.
  EXPECT_THAT(outcome.out,
              AllOf(HasSubstr("B,faulty_communicator,all-reduce,2,1024,256,in-place,0,"),
                    Not(HasSubstr("B,faulty_communicator,all-reduce,2,64,16,in-place,0,"))));
}

TEST_F(BenchCollectives, RefusesWhatCannotTakePart) {
  const std::string command = std::string(kCollectives) + "-n 2 --a ";
  ExpectRefused({
      {command + "sgd", 79, HasSubstr("is no communicator")},
      {command + "./libmine.so", 79, HasSubstr("libmine.so")},
      {command + "nul", 79, HasSubstr("did you mean 'null'")},
      {command + "tcp --a-set io_thread=1", 78, HasSubstr("did you mean 'io_threads'")},
      {command + "tcp --a-set speed=3", 78, HasSubstr("there is no option 'speed'")},
      {command + "tcp --a-set speed", 78, HasSubstr("KEY=VALUE")},
      {command + "hier --a-set tcp.io_thread=1", 78, HasSubstr("did you mean 'io_threads'")},
      {command + "hier --a-set gloo.io_threads=1", 78, HasSubstr("no option 'gloo.io_threads'")},
  });
  const Outcome size = Bench("--a tcp --min-bytes 4X");
  EXPECT_EQ(size.exit_code, 2);
  EXPECT_THAT(size.err, HasSubstr("--min-bytes: x unit not recognized"));
}

TEST_F(BenchCollectives, RanksMayComeFromALauncher) {
  const std::string words =
      std::string(kCollectives) +
      "--a tcp --max-bytes 4 --rendezvous 127.0.0.1:" + std::to_string(FreePort());
  const auto first = Start(words, TorchrunRank(0, 2, 1));
  const auto second = Start(words, TorchrunRank(1, 2, 1));
  EXPECT_THAT(Output(first->Wait()),
              StartsWith("all-reduce of float32 in place, 2 ranks (torchrun)"));
  EXPECT_EQ(Output(second->Wait()), "");
}

}  // namespace
}  // namespace engine::test
