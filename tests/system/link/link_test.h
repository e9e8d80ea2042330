// Tests with network namespaces.
#pragma once

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "bench/link/linked_hosts.h"
#include "bench/link/program.h"
#include "tests/support/probe_process.h"

namespace engine::bench {

// Why they cannot, asked of the system and not of the code under test; or "".
inline std::string WhyNoNamespaces() {
  if (geteuid() != 0) return "needs root";
  if (FindProgram("ip").empty() || FindProgram("tc").empty()) return "needs iproute2";
  const pid_t child = fork();
  if (child == 0) _exit(unshare(CLONE_NEWNET | CLONE_NEWNS) == 0 ? 0 : 1);
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0 ? "" : "may not make network namespaces";
}

// Skipped where they cannot run.
class LinkTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::string reason = WhyNoNamespaces();
    if (!reason.empty()) GTEST_SKIP() << reason;
  }
};

// `engine run ARGUMENTS` as rank `rank` of a run that has one on each of the hosts.
inline std::unique_ptr<ProbeProcess> StartRank(const LinkedHosts& hosts, int rank,
                                               const std::vector<std::string>& arguments) {
  std::vector<std::string> command = hosts.CommandPrefix(rank);
  command.insert(command.end(), {ENGINE_TEST_BINARY, "run", "--insecure", "--plugin-path",
                                 ENGINE_TEST_PLUGIN_DIR});
  command.insert(command.end(), arguments.begin(), arguments.end());
  const std::map<std::string, std::string> environment = {
      {"RANK", std::to_string(rank)},
      {"WORLD_SIZE", std::to_string(hosts.hosts())},
      {"LOCAL_RANK", "0"},
      {"LOCAL_WORLD_SIZE", "1"},
      {"MASTER_PORT", "29500"},
      {"MASTER_ADDR", hosts.Address(0)}};
  return std::make_unique<ProbeProcess>(command, environment);
}

}  // namespace engine::bench
