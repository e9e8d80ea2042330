// A server of a run: it keeps parameters and updates them, and trains nothing.
#pragma once

#include <string>
#include <vector>

#include "app/config/config.h"
#include "core/base/rank_context.h"
#include "engine/status.h"

namespace engine::run {

// Of a rank or a server, before its first plugin is made: what the configuration says of how long a
// call or a transfer may take.
void SetDeadlines(const train::CommunicationOptions& options, base::RankContext& member);

// Rank 0 of a run with servers, before it trains: tells them which plugins it runs, and those from
// elsewhere the whole configuration.
Status DescribeRunToServers(const config::Config& config, base::RankContext& rank);

// The configuration of the run that this server has joined, with the plugins that lie in
// `plugin_folders` here. kTimeout when rank 0 does not say it in time; kConfig, kPlugin.
Result<config::Config> ConfigOfRun(base::RankContext& server,
                                   const std::vector<std::string>& plugin_folders,
                                   int64_t timeout_ms);

// Serves until every rank has left or the run is over. kConfig when the communicator has no servers
// or this member has other plugins than rank 0.
Status ServeParameters(const config::Config& config, base::RankContext& server);

}  // namespace engine::run
