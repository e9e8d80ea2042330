// The real Open MPI launcher.

#include <gtest/gtest.h>
#include <signal.h>

#include "tests/support/probe_process.h"

namespace engine {
namespace {

std::vector<std::string> Mpirun(std::vector<std::string> arguments) {
  std::vector<std::string> command = {MPIRUN, "--oversubscribe", "-n", "2", LAUNCH_PROBE};
  command.insert(command.end(), arguments.begin(), arguments.end());
  return command;
}

// Build machines often work as root in a container, which Open MPI wants to be told twice.
const std::map<std::string, std::string> kAsRoot = {{"OMPI_ALLOW_RUN_AS_ROOT", "1"},
                                                    {"OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"}};

TEST(Mpirun, RanksFindEachOther) {
  ProbeProcess process(Mpirun({"ring"}), kAsRoot);
  EXPECT_EQ(process.Wait(), 0) << process.output();
  EXPECT_EQ(process.ReadLines("pid ", 2).size(), 2u);
}

TEST(Mpirun, AFailureIsSaidByTheRankAndByRankZero) {
  ProbeProcess process(Mpirun({"fail", "1"}), kAsRoot);
  EXPECT_EQ(process.Wait(), 65) << process.output();
  EXPECT_EQ(process.ReadLines("error: rank 1: a planned failure", 2).size(), 2u);
}

TEST(Mpirun, ItsSignalStopsAllRanks) {
  ProbeProcess process(Mpirun({"wait"}), kAsRoot);
  process.ReadLines("pid ", 2);
  kill(process.pid(), SIGTERM);
  EXPECT_NE(process.Wait(), 0);
  EXPECT_GE(process.ReadLines("stop ", 1).size(), 1u);
}

}  // namespace
}  // namespace engine
