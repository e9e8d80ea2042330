// What the subcommands of `engine bench` share.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "bench/bench.h"
#include "bench/cli/command.h"

namespace engine {

// Adds the flags of side "a" or "b"; `with_plugins`: also the one that lists its plugins.
void AddSideFlags(CLI::App* app, const std::string& name, bench::Side* side, bool with_plugins);
// How ranks are connected.
void AddLinkFlags(CLI::App* app, bench::LinkOptions* link);

// Runs a program once per host of `link`, numbered by torchrun's variables, and prints what rank 0
// printed, or what the rank did that failed: its exit code. Nothing is left running.
int RunOnHosts(const std::vector<std::string>& command, const bench::LinkOptions& link,
               const command::Environment& environment, double timeout_s);

// Of what measures collectives on ranks.
struct SweepFlags {
  command::PluginFlags plugin;
  launch::LaunchFlags launch;
  int ranks = 0;
  bench::SweepRequest request;
  double timeout_s = 30;
  bench::LinkOptions link;
};
void AddSweepFlags(CLI::App* app, SweepFlags* flags);
// What --kind and --dtype name.
const std::map<std::string, TransferKind>& Kinds();
const std::map<std::string, DType>& DTypes();

using RanksBody =
    std::function<Status(const bench::SweepRequest& request, const bench::SweepConditions&,
                         const plugins::HostNetwork& network, base::RankContext& rank)>;
// Contenders of the request know the network of the host. Runs `body` on each rank that the flags and the launcher give; returns the exit code.
int RunOnRanks(SweepFlags flags, const command::Environment& environment, const RanksBody& body);

std::vector<std::string> CommandLineOfThisProcess();
bench::Machine ThisMachine();
Result<std::unique_ptr<bench::ScratchFolder>> MakeScratch();

// Add one subcommand of `engine bench` each.
void AddBenchTrain(CLI::App& bench, const command::Environment& environment, int* exit_code);
void AddBenchCollectives(CLI::App& bench, const command::Environment& environment, int* exit_code);
void AddBenchCluster(CLI::App& bench, const command::Environment& environment, int* exit_code);
void AddBenchHosts(CLI::App& bench, const command::Environment& environment, int* exit_code);

}  // namespace engine
