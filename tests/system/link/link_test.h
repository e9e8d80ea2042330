// Tests with network namespaces.
#pragma once

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>

#include "bench/link/program.h"

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

}  // namespace engine::bench
