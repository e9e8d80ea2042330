// Ranks that another launcher starts: its environment is set by hand.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <memory>
#include <thread>

#include "tests/support/probe_process.h"

namespace engine {
namespace {

using testing::HasSubstr;
using Variables = std::map<std::string, std::string>;

Variables TorchrunRank(int rank, int world_size, int port) {
  return {{"RANK", std::to_string(rank)},       {"WORLD_SIZE", std::to_string(world_size)},
          {"LOCAL_RANK", std::to_string(rank)}, {"LOCAL_WORLD_SIZE", std::to_string(world_size)},
          {"MASTER_ADDR", "127.0.0.1"},         {"MASTER_PORT", std::to_string(port)},
          {"TORCHELASTIC_RUN_ID", "test"},      {"TORCHELASTIC_RESTART_COUNT", "0"}};
}

Variables OpenMpiRank(int rank, int world_size) {
  return {{"OMPI_COMM_WORLD_RANK", std::to_string(rank)},
          {"OMPI_COMM_WORLD_SIZE", std::to_string(world_size)},
          {"OMPI_COMM_WORLD_LOCAL_RANK", std::to_string(rank)},
          {"OMPI_COMM_WORLD_LOCAL_SIZE", std::to_string(world_size)},
          {"PMIX_NAMESPACE", "test-" + std::to_string(getpid())}};
}

class Join : public testing::Test {
 protected:
  void Start(std::vector<std::string> arguments, const Variables& variables) {
    arguments.insert(arguments.begin(), LAUNCH_PROBE);
    ranks_.push_back(std::make_unique<ProbeProcess>(arguments, variables));
  }
  void StartTorchrunRanks(const std::vector<std::string>& arguments, int world_size) {
    int port = FreePort();
    for (int rank = 0; rank < world_size; ++rank) {
      Start(arguments, TorchrunRank(rank, world_size, port));
    }
  }

  std::vector<std::unique_ptr<ProbeProcess>> ranks_;
};

TEST_F(Join, ThreeProcessesOverTcp) {
  StartTorchrunRanks({"ring"}, 3);
  for (auto& rank : ranks_) EXPECT_EQ(rank->Wait(), 0) << rank->output();
}

TEST_F(Join, ThreeProcessesOverAnAbstractSocket) {
  // The last rank first: the others find rank 0 whenever it comes.
  for (int rank : {2, 1, 0}) Start({"ring"}, OpenMpiRank(rank, 3));
  for (auto& rank : ranks_) EXPECT_EQ(rank->Wait(), 0) << rank->output();
}

TEST_F(Join, OnlyRankZeroReportsAFailureAndAllExitAlike) {
  StartTorchrunRanks({"fail", "1"}, 3);
  for (auto& rank : ranks_) EXPECT_EQ(rank->Wait(), 65) << rank->output();
  EXPECT_THAT(ranks_[0]->output(), HasSubstr("error: rank 1: a planned failure\n"));
  for (int rank : {1, 2}) {
    EXPECT_THAT(ranks_[rank]->output(), testing::Not(HasSubstr("error")));
  }
}

TEST_F(Join, AKilledRankEndsTheOthers) {
  StartTorchrunRanks({"kill", "2"}, 3);
  EXPECT_EQ(ranks_[2]->Wait(), 137);
  EXPECT_EQ(ranks_[0]->Wait(), 200);
  EXPECT_EQ(ranks_[1]->Wait(), 200);
  EXPECT_THAT(ranks_[0]->output(), HasSubstr("error: rank 2: its connection to rank 0 ended"));
}

TEST_F(Join, AKilledRankZeroEndsTheOthers) {
  StartTorchrunRanks({"kill", "0"}, 3);
  EXPECT_EQ(ranks_[0]->Wait(), 137);
  for (int rank : {1, 2}) {
    EXPECT_EQ(ranks_[rank]->Wait(), 200);
    EXPECT_THAT(ranks_[rank]->output(), HasSubstr("error: rank 0: lost the connection to rank 0"));
  }
}

TEST_F(Join, MissingRanksAreListed) {
  int port = FreePort();
  for (int rank : {0, 2}) {
    Start({"ring", "--rendezvous-ms", "500"}, TorchrunRank(rank, 4, port));
  }
  for (auto& rank : ranks_) EXPECT_EQ(rank->Wait(), 201) << rank->output();
  EXPECT_THAT(ranks_[0]->output(), HasSubstr("ranks 1, 3 did not join at 127.0.0.1:"));
}

TEST_F(Join, AMissingRankZeroIsNamedWithItsAddress) {
  int port = FreePort();
  Start({"ring", "--rendezvous-ms", "300"}, TorchrunRank(1, 2, port));
  EXPECT_EQ(ranks_[0]->Wait(), 201);
  EXPECT_THAT(ranks_[0]->output(),
              HasSubstr("found no rank 0 at 127.0.0.1:" + std::to_string(port)));
}

TEST_F(Join, AnotherWorldSizeIsRefusedOnBothSides) {
  int port = FreePort();
  Start({"ring"}, TorchrunRank(0, 2, port));
  Start({"ring"}, TorchrunRank(1, 3, port));
  for (auto& rank : ranks_) {
    EXPECT_EQ(rank->Wait(), 201);
    EXPECT_THAT(rank->output(), HasSubstr("rank 1 was started as one of 3 ranks"));
  }
}

TEST_F(Join, AnotherRunAtTheSameAddressIsRefusedAndDisturbsNothing) {
  int port = FreePort();
  Start({"ring"}, TorchrunRank(0, 2, port));
  Variables other = TorchrunRank(1, 2, port);
  other["TORCHELASTIC_RUN_ID"] = "another";
  Start({"ring"}, other);
  EXPECT_EQ(ranks_[1]->Wait(), 201);
  EXPECT_THAT(ranks_[1]->output(), HasSubstr("another run is using 127.0.0.1"));
  Start({"ring"}, TorchrunRank(1, 2, port));
  EXPECT_EQ(ranks_[0]->Wait(), 0) << ranks_[0]->output();
  EXPECT_EQ(ranks_[2]->Wait(), 0) << ranks_[2]->output();
}

TEST_F(Join, ASignalToOneRankStopsAll) {
  StartTorchrunRanks({"wait"}, 2);
  for (auto& rank : ranks_) rank->ReadLines("pid ", 1);
  kill(ranks_[1]->pid(), SIGTERM);
  for (auto& rank : ranks_) {
    EXPECT_EQ(rank->Wait(), 143) << rank->output();
    EXPECT_THAT(rank->output(), HasSubstr("stop 15"));
  }
}

TEST_F(Join, ASignalEndsTheRendezvous) {
  Start({"ring"}, TorchrunRank(0, 2, FreePort()));
  Start({"ring"}, TorchrunRank(1, 2, FreePort()));
  for (auto& rank : ranks_) {
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    kill(rank->pid(), SIGINT);
    EXPECT_EQ(rank->Wait(), 130) << rank->output();
  }
}

TEST_F(Join, ServersJoinWhereTheRanksMeet) {
  const int port = FreePort();
  const std::string address = "127.0.0.1:" + std::to_string(port);
  for (const char* index : {"1", "0"}) Start({"ring", "--serve", address, "--index", index}, {});
  for (int rank : {0, 1}) Start({"ring", "--servers", "2"}, TorchrunRank(rank, 2, port));
  for (auto& member : ranks_) EXPECT_EQ(member->Wait(), 0) << member->output();
  for (int server : {0, 1}) {
    EXPECT_THAT(ranks_[server]->output(), HasSubstr("run of 2 ranks, 2 servers, one host 1\n"));
    EXPECT_THAT(ranks_[server]->output(), HasSubstr("served 0\n"));
  }
}

TEST_F(Join, ARunWithoutServersRefusesThem) {
  const int port = FreePort();
  Start({"ring", "--serve", "127.0.0.1:" + std::to_string(port), "--index", "0"}, {});
  Start({"ring"}, TorchrunRank(0, 2, port));
  EXPECT_EQ(ranks_[0]->Wait(), 201);
  EXPECT_THAT(ranks_[0]->output(), HasSubstr("has no servers: start it with --servers"));
  Start({"ring"}, TorchrunRank(1, 2, port));
  for (int rank : {1, 2}) EXPECT_EQ(ranks_[rank]->Wait(), 0) << ranks_[rank]->output();
}

TEST_F(Join, AServerThatDiesIsNamed) {
  const int port = FreePort();
  Start({"server-kill", "0", "--serve", "127.0.0.1:" + std::to_string(port), "--index", "0"}, {});
  for (int rank : {0, 1}) Start({"server-kill", "--servers", "1"}, TorchrunRank(rank, 2, port));
  EXPECT_EQ(ranks_[0]->Wait(), 137);
  for (int rank : {1, 2}) EXPECT_EQ(ranks_[rank]->Wait(), 200);
  EXPECT_THAT(ranks_[1]->output(), HasSubstr("error: server 0: its connection to rank 0 ended"));
}

TEST_F(Join, AnExplicitOtherNumberOfRanksIsAConflict) {
  Start({"ring", "-n", "3"}, TorchrunRank(0, 2, FreePort()));
  EXPECT_EQ(ranks_[0]->Wait(), 2);
  EXPECT_THAT(ranks_[0]->output(), HasSubstr("-n 3 and torchrun (RANK=0, WORLD_SIZE=2) disagree"));
}

}  // namespace
}  // namespace engine
