// Ranks and servers as processes on hosts of their own.
#pragma once

#include <string>
#include <vector>

#include "bench/link/linked_hosts.h"
#include "bench/process/process_group.h"

namespace engine::bench {

// Adds to the environment of `command` the variables by which torchrun numbers a rank.
void SetRank(int rank, int ranks, int local_rank, int local_ranks, Command* command);

// `command` for each of `ranks`, of which `ranks_per_host` divides them and so many consecutive ones
// are on a host, with the variables of torchrun that number them; what rank R prints goes to the file
// `output` + R.
std::vector<Command> RanksOnHosts(const Command& command, const LinkedHosts& hosts, int ranks,
                                  const std::string& output, int ranks_per_host = 1);

// Where the store of those ranks listens: HOST:PORT.
std::string RendezvousOf(const LinkedHosts& hosts);

// The same `command` with "--index I" at its end, on each of the hosts behind the first `ranks`;
// what server I prints goes to the file `output` + "server" + I.
std::vector<Command> ServersOnHosts(const Command& command, const LinkedHosts& hosts, int ranks,
                                    const std::string& output);

}  // namespace engine::bench
