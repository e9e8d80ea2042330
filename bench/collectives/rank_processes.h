// Ranks as processes of this host that never survive the process that started them.
#pragma once

#include <chrono>
#include <functional>

#include "engine/status.h"

namespace engine::bench {

// Runs `rank_main(rank)`, which returns an exit code, in `ranks` forked processes and waits for
// them. When one fails, at the deadline and on SIGINT or SIGTERM all are killed and an error is
// returned. The calling process has no other threads and no other children.
Status RunRankProcesses(int ranks, std::chrono::seconds timeout,
                        const std::function<int(int rank)>& rank_main);

}  // namespace engine::bench
