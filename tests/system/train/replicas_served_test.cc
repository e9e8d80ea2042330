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
    int ranks, servers;
    std::vector<std::string> more;
  };
  const std::vector<Case> cases = {
      {3, 0, {}},  // servers in the ranks
      {2, 1, {}},
      {3, 2, {"zmq_ps.update=workers"}},
  };
  for (const Case& one_case : cases) {
    for (const std::string& scheduler : kSchedulers) {
      std::vector<std::string> more = one_case.more;
      more.push_back(Plugins("zmq_ps", scheduler));
      ExpectEqualsOne(one, kReplicaNet, {one_case.ranks, one_case.servers}, more);
    }
  }
}

TEST_F(ReplicasServed, WhatCannotSeeAllRanksIsRefused) {
  const Training pace = TrainWithThreads(kReplicaNet, {.ranks = 2},
                                         {Plugins("zmq_ps", "fifo_sched"), "zmq_ps.update=async"},
                                         /*expect_ok=*/false);
  EXPECT_EQ(pace.exit_code, 78);
  EXPECT_THAT(pace.status.message(),
              AllOf(HasSubstr("layer 'bn1' (batch_norm)"), HasSubstr("no rank waits for another")));
}

}  // namespace
}  // namespace engine::testing
