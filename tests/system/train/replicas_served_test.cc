// Ops that see all ranks where the communicator is one of parameter servers.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/system/train/replica_net.h"

namespace engine::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ReplicasServed = ReplicaRuns;

TEST_F(ReplicasServed, ServersOfAnyKindEqualOneRank) {
  const Training one = TrainAlone(kReplicaNet);
  struct Case {
    const char* what;
    int ranks, servers;
    std::vector<std::string> more;
  };
  const std::vector<Case> cases = {
      {"servers in the ranks", 3, 0, {}},
      {"in any order", 2, 0, {"zmq_ps.match=key"}},
      {"one server that updates", 2, 1, {}},
      {"two that only add up in one order", 3, 2, {"zmq_ps.update=workers"}},
      {"one that only adds up, in any order", 3, 1, {"zmq_ps.update=workers", "zmq_ps.match=key"}},
  };
  for (const Case& one_case : cases) {
    for (const std::string& scheduler : kSchedulers) {
      // A scheduler with a credit and transfers in any order may stop a run:
      // docs/parameter_server.md.
      const bool any_order = !one_case.more.empty() && one_case.more.back() == "zmq_ps.match=key";
      if (scheduler == "priority_sched" && any_order) continue;
      std::vector<std::string> more = one_case.more;
      more.push_back(CheckpointAt("several"));
      const Training run =
          TrainWithThreads(NetWith("zmq_ps", scheduler),
                           {.ranks = one_case.ranks, .servers = one_case.servers}, more);
      ExpectSameRun(run, "several", one, std::string(one_case.what) + ", " + scheduler);
    }
  }
}

TEST_F(ReplicasServed, WhatCannotSeeAllRanksIsRefused) {
  const Training pace = TrainWithThreads(NetWith("zmq_ps", "fifo_sched"), {.ranks = 2},
                                         {"zmq_ps.update=async"}, /*expect_ok=*/false);
  EXPECT_EQ(pace.exit_code, 78);
  EXPECT_THAT(pace.status.message(),
              AllOf(HasSubstr("layer 'bn1' (batch_norm)"), HasSubstr("no rank waits for another")));
}

}  // namespace
}  // namespace engine::testing
