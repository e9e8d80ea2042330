// Ranks that another launcher starts: its environment is set by hand.

#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <thread>

#include "tests/support/matchers.h"
#include "tests/system/launch/probe_test.h"

namespace engine {
namespace {

Variables OpenMpiRank(int rank, int world_size) {
  return {{"OMPI_COMM_WORLD_RANK", std::to_string(rank)},
          {"OMPI_COMM_WORLD_SIZE", std::to_string(world_size)},
          {"OMPI_COMM_WORLD_LOCAL_RANK", std::to_string(rank)},
          {"OMPI_COMM_WORLD_LOCAL_SIZE", std::to_string(world_size)},
          {"PMIX_NAMESPACE", "test-" + std::to_string(getpid())}};
}

class Join : public ProbeTest {
 protected:
  ProbeProcess& StartRank(const std::string& words, int rank, int world_size) {
    return Start(words, TorchrunRank(rank, world_size, port_));
  }
  void StartRanks(const std::string& words, int world_size) {
    for (int rank = 0; rank < world_size; ++rank) StartRank(words, rank, world_size);
  }

  const int port_ = FreePort();
  const std::string address_ = "127.0.0.1:" + std::to_string(port_);
};

TEST_F(Join, ThreeProcessesOverTcp) {
  StartRanks("ring", 3);
  ExpectEnds({0, 0, 0});
}

TEST_F(Join, ThreeProcessesOverAnAbstractSocket) {
  // The last rank first: the others find rank 0 whenever it comes.
  for (int rank : {2, 1, 0}) Start("ring", OpenMpiRank(rank, 3));
  ExpectEnds({0, 0, 0});
}

TEST_F(Join, EveryRankSaysTheRootCauseAndAllExitAlike) {
  StartRanks("fail 1", 3);
  ExpectEnds({65, 65, 65});
  EXPECT_THAT((std::vector{Output(0), Output(1), Output(2)}),
              Each(HasSubstr("error: rank 1: a planned failure\n")));
}

// Nobody kills them: each process ends itself.
TEST_F(Join, RanksThatHangEnd) {
  StartRanks("stuck 0", 2);
  ExpectEnds({203, 203});
  EXPECT_THAT(Output(1), HasSubstr("notice: rank 1: rank 0 failed: the first failure; its own work "
                                   "hangs"));
}

TEST_F(Join, RankZeroThatHangsWhenTheOthersHaveLeftEnds) {
  StartRanks("stay 0 --leave-ms 300", 2);
  ExpectEnds({202, 0});
  EXPECT_THAT(Output(0),
              HasSubstr("notice: rank 0: rank 0 did not end within 300 ms after rank 1"));
}

TEST_F(Join, AMissingRankZeroIsNamedWithItsAddress) {
  StartRank("ring --rendezvous-ms 100", 1, 2);
  ExpectEnds({201});
  EXPECT_THAT(Output(0), HasSubstr("found no rank 0 at " + address_));
}

TEST_F(Join, ASignalEndsTheRendezvous) {
  for (int rank : {0, 1}) {
    ProbeProcess& process = Start("ring", TorchrunRank(rank, 2, FreePort()));
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    kill(process.pid(), SIGTERM);
    EXPECT_EQ(process.Wait(), 143) << process.output();
  }
}

TEST_F(Join, ServersJoinWhereTheRanksMeet) {
  for (const char* index : {"1", "0"}) Start("ring --serve " + address_ + " --index " + index);
  StartRanks("ring --servers 2", 2);
  ExpectEnds({0, 0, 0, 0});
  for (int server : {0, 1}) {
    EXPECT_THAT(Output(server), HasSubstr("run of 2 ranks, 2 servers, one host 1\n"));
    EXPECT_THAT(Output(server), HasSubstr("served 0\n"));
  }
}

TEST_F(Join, AServerThatDiesIsNamed) {
  Start("server-kill 0 --serve " + address_ + " --index 0");
  StartRanks("server-kill --servers 1", 2);
  ExpectEnds({137, 200, 200});
  EXPECT_THAT(Output(1), HasSubstr("error: server 0: its connection to rank 0 ended"));
}

}  // namespace
}  // namespace engine
