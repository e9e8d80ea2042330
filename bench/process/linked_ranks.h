// Ranks as processes, each on a host of its own.
#pragma once

#include <string>
#include <vector>

#include "bench/link/linked_hosts.h"
#include "bench/process/process_group.h"

namespace engine::bench {

// `command` once per host of `hosts`, with the variables of torchrun that number its rank; what
// rank R prints goes to the file `output` + R.
std::vector<Command> OnEachHost(const Command& command, const LinkedHosts& hosts,
                                const std::string& output);

}  // namespace engine::bench
