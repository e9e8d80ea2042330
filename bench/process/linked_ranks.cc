#include "bench/process/linked_ranks.h"

namespace engine::bench {
namespace {

// Free, because each host has its own ports.
constexpr const char* kRendezvousPort = "29400";

}  // namespace

std::vector<Command> OnEachHost(const Command& command, const LinkedHosts& hosts,
                                const std::string& output) {
  std::vector<Command> commands;
  for (int rank = 0; rank < hosts.hosts(); ++rank) {
    Command of_rank = command;
    const std::vector<std::string> prefix = hosts.CommandPrefix(rank);
    of_rank.arguments.insert(of_rank.arguments.begin(), prefix.begin(), prefix.end());
    of_rank.environment["RANK"] = std::to_string(rank);
    of_rank.environment["WORLD_SIZE"] = std::to_string(hosts.hosts());
    of_rank.environment["LOCAL_RANK"] = "0";
    of_rank.environment["LOCAL_WORLD_SIZE"] = "1";
    of_rank.environment["MASTER_ADDR"] = hosts.Address(0);
    of_rank.environment["MASTER_PORT"] = kRendezvousPort;
    of_rank.output = output + std::to_string(rank);
    commands.push_back(std::move(of_rank));
  }
  return commands;
}

}  // namespace engine::bench
