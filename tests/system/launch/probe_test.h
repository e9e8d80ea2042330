// Runs of launch_probe, which are told in words: Start("ring -n 2").
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "tests/support/probe_process.h"
#include "tests/support/words.h"

namespace engine {

class ProbeTest : public ::testing::Test {
 protected:
  void SetUp() override { AdoptOrphans(); }
  void TearDown() override {
    started_.clear();
    EXPECT_TRUE(AwaitNoDescendants());
  }

  // Lives as long as the test.
  ProbeProcess& Start(const std::string& words, const Variables& environment = {}) {
    started_.push_back(
        std::make_unique<ProbeProcess>(Words(LAUNCH_PROBE " " + words), environment));
    return *started_.back();
  }
  // Waits for all that were started, which end with these exit codes.
  void ExpectEnds(const std::vector<int>& exit_codes) {
    ASSERT_EQ(exit_codes.size(), started_.size());
    for (size_t i = 0; i < started_.size(); ++i) {
      EXPECT_EQ(started_[i]->Wait(), exit_codes[i]) << "process " << i << ": " << Output(i);
    }
  }
  const std::string& Output(size_t i) const { return started_[i]->output(); }

  // The rest of the one line that begins so.
  static std::string LineOf(ProbeProcess& process, const char* prefix) {
    const std::vector<std::string> lines = process.ReadLines(prefix, 1);
    EXPECT_EQ(lines.size(), 1u) << process.output();
    return lines.empty() ? "" : lines[0];
  }
  static std::string ErrorOf(ProbeProcess& process) { return LineOf(process, "error: "); }

 private:
  std::vector<std::unique_ptr<ProbeProcess>> started_;
};

}  // namespace engine
