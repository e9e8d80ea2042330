#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "bench/collectives/format.h"
#include "tests/support/matchers.h"

namespace engine::bench {
namespace {

Timing TimingOf(double us, int64_t bytes, int64_t wrong) {
  Timing timing{.wrong = wrong, .iterations = wrong > 0 ? 0 : 100};
  if (wrong > 0) return timing;
  timing.us = {.median = us, .p10 = us, .p90 = us, .p99 = 2 * us, .mean = us, .min = us, .max = us};
  timing.algbw = timing.busbw = static_cast<double>(bytes) / us * 1e-3;
  return timing;
}

class SweepFormat : public ::testing::Test {
 protected:
  SweepFormat() {
    for (const char* label : {"A", "B"}) {
      Contender contender{.label = label, .choice = {}};
      contender.choice.entry.name = "comm";
      contender.choice.entry.path = "/lib/libengine_comm.so";
      request_.contenders.push_back(contender);
    }
    SweepRow row{.bytes = 1 << 20, .count = 1 << 18, .timings = {}, .ratio = {}};
    row.timings[kOutOfPlace] = {TimingOf(458.87, 1 << 20, 0), TimingOf(99.5, 1 << 20, -1)};
    row.timings[kInPlace] = {TimingOf(12345.6, 1 << 20, 0), TimingOf(1, 1 << 20, 77)};
    result_.rows.push_back(row);
    result_.wrong = 77;
  }

  SweepRequest request_;
  SweepConditions conditions_{.ranks = 2, .source = "-n", .machine = {}};
  SweepResult result_;
};

TEST_F(SweepFormat, NcclTestsLayout) {
  EXPECT_EQ(NcclRow(request_, result_.rows[0], 0),
            "     1048576        262144     float     sum      -1   458.87    2.29    2.29       0"
            "  12345.6    0.08    0.08       0\n");
  // Nothing was moved; and what is wrong is not timed.
  EXPECT_EQ(NcclRow(request_, result_.rows[0], 1),
            "     1048576        262144     float     sum      -1    99.50   10.54   10.54     N/A"
            "        -       -       -      77\n");
  const std::string head = NcclHead(request_, conditions_, 0);
  EXPECT_THAT(head,
              HasSubstr("#       size         count      type   redop    root     time   algbw   "
                        "busbw  #wrong     time   algbw   busbw  #wrong\n"));
  EXPECT_THAT(head, HasSubstr("#        (B)    (elements)                               (us)  "
                              "(GB/s)  (GB/s)             (us)  (GB/s)  (GB/s)        \n"));
  EXPECT_THAT(NcclFoot(result_, 1), StartsWith("# Out of bounds values : 1 FAILED\n# Avg bus "
                                               "bandwidth    : "));
  EXPECT_THAT(NcclFoot(result_, 0), StartsWith("# Out of bounds values : 0 OK\n"));
}

TEST_F(SweepFormat, NcclTestsRootAndReduction) {
  request_.kind = TransferKind::kBroadcast;
  EXPECT_THAT(NcclRow(request_, result_.rows[0], 0), HasSubstr("float    none       0"));
}

TEST_F(SweepFormat, CsvHasALineForEachFigure) {
  const std::string csv = SweepCsv(request_, conditions_, result_);
  EXPECT_EQ(std::count(csv.begin(), csv.end(), '\n'), 1 + 4);
  EXPECT_THAT(csv, HasSubstr("A,comm,all-reduce,2,1048576,262144,out-of-place,100,458.870,917.740,"
                             "458.870,2.28513,2.28513,0\n"));
  EXPECT_THAT(csv, HasSubstr("B,comm,all-reduce,2,1048576,262144,in-place,0,"));
}

TEST_F(SweepFormat, JsonHoldsEverything) {
  const auto json = nlohmann::json::parse(SweepJson(request_, conditions_, result_));
  EXPECT_EQ(json["wrong"], 77);
  EXPECT_EQ(json["ranks"], 2);
  const auto& row = json["rows"][0];
  EXPECT_EQ(row["bytes"], 1 << 20);
  EXPECT_NEAR(row["out_of_place"]["A"]["time_us"]["p99"].get<double>(), 917.74, 1e-6);
  EXPECT_TRUE(row["out_of_place"]["B"]["wrong"].is_null());
  EXPECT_EQ(row["in_place"]["B"]["wrong"], 77);
}

TEST_F(SweepFormat, TableNamesTheWrongOne) {
  EXPECT_THAT(TableRow(result_.rows[0]), HasSubstr("1 MiB"));
  EXPECT_THAT(TableRow(result_.rows[0]), HasSubstr("-       77"));
}

}  // namespace
}  // namespace engine::bench
