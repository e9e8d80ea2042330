#include "bench/link/linked_ranks.h"

#include <utility>

namespace engine::bench {
namespace {

// Free, because each host has its own ports.
constexpr const char* kRendezvousPort = "29400";

Command OnHost(Command command, const LinkedHosts& hosts, int host) {
  const std::vector<std::string> prefix = hosts.CommandPrefix(host);
  command.arguments.insert(command.arguments.begin(), prefix.begin(), prefix.end());
  return command;
}

}  // namespace

void SetRank(int rank, int ranks, int local_rank, int local_ranks, Command* command) {
  command->environment["RANK"] = std::to_string(rank);
  command->environment["WORLD_SIZE"] = std::to_string(ranks);
  command->environment["LOCAL_RANK"] = std::to_string(local_rank);
  command->environment["LOCAL_WORLD_SIZE"] = std::to_string(local_ranks);
}

std::vector<Command> RanksOnHosts(const Command& command, const LinkedHosts& hosts, int ranks,
                                  const std::string& output, int ranks_per_host) {
  std::vector<Command> commands;
  for (int rank = 0; rank < ranks; ++rank) {
    Command of_rank = OnHost(command, hosts, rank / ranks_per_host);
    SetRank(rank, ranks, rank % ranks_per_host, ranks_per_host, &of_rank);
    of_rank.environment["MASTER_ADDR"] = hosts.Address(0);
    of_rank.environment["MASTER_PORT"] = kRendezvousPort;
    of_rank.output = output + std::to_string(rank);
    commands.push_back(std::move(of_rank));
  }
  return commands;
}

std::string RendezvousOf(const LinkedHosts& hosts) {
  return hosts.Address(0) + ":" + kRendezvousPort;
}

std::vector<Command> ServersOnHosts(const Command& command, const LinkedHosts& hosts, int ranks,
                                    const std::string& output) {
  std::vector<Command> commands;
  for (int server = 0; ranks + server < hosts.hosts(); ++server) {
    Command of_server = OnHost(command, hosts, ranks + server);
    of_server.arguments.insert(of_server.arguments.end(), {"--index", std::to_string(server)});
    of_server.output = output + "server" + std::to_string(server);
    commands.push_back(std::move(of_server));
  }
  return commands;
}

}  // namespace engine::bench
