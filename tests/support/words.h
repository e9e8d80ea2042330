// Command lines and environments of processes that tests start, and whether they live.
#pragma once

#include <iterator>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "tests/support/temp_folder.h"

namespace engine {

// The words of a line; nothing is quoted.
inline std::vector<std::string> Words(const std::string& line) {
  std::istringstream stream(line);
  return {std::istream_iterator<std::string>(stream), std::istream_iterator<std::string>()};
}

using Variables = std::map<std::string, std::string>;

inline bool IsAlive(int pid) {
  const std::string state = test::ReadWhole("/proc/" + std::to_string(pid) + "/stat");
  return !state.empty() && state.find(") Z ") == std::string::npos;
}

// What torchrun tells a rank, all of one host.
inline Variables TorchrunRank(int rank, int world_size, int port) {
  return {{"RANK", std::to_string(rank)},       {"WORLD_SIZE", std::to_string(world_size)},
          {"LOCAL_RANK", std::to_string(rank)}, {"LOCAL_WORLD_SIZE", std::to_string(world_size)},
          {"MASTER_ADDR", "127.0.0.1"},         {"MASTER_PORT", std::to_string(port)},
          {"TORCHELASTIC_RUN_ID", "test"},      {"TORCHELASTIC_RESTART_COUNT", "0"}};
}

}  // namespace engine
